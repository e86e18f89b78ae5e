from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commprof.analysis.run import analyse_in_detail
from commprof.analysis.verdict import verdict
from commprof.commands import main
from commprof.recordings.profiler import read_recording
from commprof.report.export import as_json
from commprof.trace import columns
from commprof.trace.schema import NO_SEQ
from tests.support.builders.profiler_traces import Event, annotation, document, kernel, write

ELEMENTS = 1_000_000


def operator(name: str, begin_us: float, end_us: float, **args: object) -> Event:
    return {**annotation(name, begin_us, end_us), "cat": "cpu_op", "args": args}


def host_step(step: int, at: float, backend: str = "nccl", described: bool = True) -> list[Event]:
    said = {
        **{"Collective name": "allreduce", "dtype": "Float", "In msg nelems": ELEMENTS},
        **{"Out msg nelems": ELEMENTS, "Group size": 2, "Seq": step},
        **{"Process Group Name": "0", "Process Group Ranks": "[0, 1]"},
    }
    enqueue = annotation(f"{backend}:all_reduce", at + 4015, at + 4095)
    dims = {"Input Dims": [[ELEMENTS]], "Input type": ["float"]}
    return [
        annotation(f"ProfilerStep#{step}", at, at + 10_000),
        *(operator("aten::mm", at + 100 * k, at + 100 * k + 90) for k in range(40)),
        operator("c10d::allreduce_", at + 4000, at + 4100),
        *([operator("record_param_comms", at + 4010, at + 4098, **said)] if described else []),
        {**enqueue, "args": dims},
        *(operator("aten::mm", at + 100 * k, at + 100 * k + 90) for k in range(45, 95)),
    ]


def device_step(step: int, at: float, rank: int = 0, numbered: bool = True) -> list[Event]:
    said = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": ELEMENTS}
    said |= {"Out msg nelems": ELEMENTS, "Group size": 2, "Process Group Name": "0"}
    said |= {"Seq": step} if numbered else {}
    launches = [
        {**annotation("cudaLaunchKernel", at + begin, at + begin + 5), "cat": "cuda_runtime"}
        for begin in (50, 4020)
    ]
    for place, launch in enumerate(launches):
        launch["args"] = {"correlation": 10 * step + place}
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
    return [
        *launches,
        kernel("gemm", at + 100, at + 6100, correlation=10 * step),
        kernel(name, at + 7000 + rank, at + 8000, 20, correlation=10 * step + 1, **said),
    ]


def job(tmp_path: Path, *ranks: list[Event]) -> Path:
    return write(tmp_path / "job", [document(e, rank) for rank, e in enumerate(ranks)])


def of_host(steps: int = 12, **how: Any) -> list[Event]:
    return [e for step in range(steps) for e in host_step(step, 5e9 + 10_000 * step, **how)]


def of_both(rank: int, steps: int = 12, numbered: bool = True) -> list[Event]:
    return of_host(steps, described=numbered) + [
        e for s in range(steps) for e in device_step(s, 5e9 + 10_000 * s, rank, numbered)
    ]


def run_of(path: Path) -> dict[str, Any]:
    (run,) = json.loads(as_json.render(analyse_in_detail(path)[0]))["runs"]
    return run  # type: ignore[no-any-return]


@pytest.mark.parametrize("described", [True, False])
@pytest.mark.parametrize("backend", ["nccl", "xccl"])
def test_a_call_that_hands_a_collective_to_a_device_is_no_transfer(
    tmp_path: Path, backend: str, described: bool
) -> None:
    folder = job(tmp_path, *[of_host(backend=backend, described=described)] * 2)
    result, details = analyse_in_detail(folder)
    run = run_of(folder)
    found = run["aggregated_metrics"]
    (row,) = found["collectives"]
    assert (row["op"], row["calls"], row["size_bytes"]) == ("all_reduce", 24, [4_000_000] * 2)
    assert row["duration"]["median_ms"] is row["algbw_gb_per_s"] is row["exposed_ms"] is None
    assert found["step_median_ms"] == pytest.approx(10.0)
    parts = found["parts"]
    assert {name for name, ms in parts.items() if ms is not None} == {"step_ms"}
    said = verdict(result, details)
    assert said is not None
    assert said.bindings[0].part is None
    assert "bounds the step: no kernel of a device was recorded" in said.headline
    assert "needs no change" not in said.next_step.advice


@pytest.mark.parametrize("kept", ["c10d::allreduce_", "record_param_comms"])
def test_calls_of_c10d_are_counted_without_the_ranges_of_a_backend(
    tmp_path: Path, kept: str
) -> None:
    events = [
        event
        for event in of_host()
        if event["name"].startswith(("Profiler", "aten")) or event["name"] == kept
    ]
    found = run_of(job(tmp_path, *[events] * 2))["aggregated_metrics"]
    (row,) = found["collectives"]
    assert (row["op"], row["calls"], row["duration"]["median_ms"]) == ("all_reduce", 24, None)
    assert found["parts"]["exposed_ms"] is None


def test_a_collective_is_counted_once_however_many_events_tell_of_it(tmp_path: Path) -> None:
    events = of_host()
    for event in events:
        event["args"] = {**event.get("args", {}), "External id": 7}
    recording = read_recording(job(tmp_path, events))
    assert recording is not None
    table = columns.collectives(recording.traces[0])
    assert table.seq.tolist() == list(range(12))
    assert table.bytes_in.tolist() == [4_000_000] * 12
    assert not table.end_ns.any()


def test_an_enqueued_call_has_its_metadata_without_a_range_of_the_backend(tmp_path: Path) -> None:
    events = [e for e in of_both(0) if not e["name"].startswith("nccl")]
    (row,) = run_of(job(tmp_path, events))["aggregated_metrics"]["collectives"]
    assert (row["op"], row["size_bytes"]) == ("all_reduce", [4_000_000] * 2)
    assert row["duration"]["median_ms"] is None


def test_kernels_of_communication_alone_may_be_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [e for e in of_both(0) if not (e["cat"] == "kernel" and e["name"] != "gemm")]
    folder = job(tmp_path, events)
    run = run_of(folder)
    parts, kernels = run["aggregated_metrics"]["parts"], run["rank_results"][0]["kernels"]
    assert parts["unphased_compute_ms"] == kernels["compute_ms"] == pytest.approx(6.0)
    assert parts["copies_ms"] == kernels["copies_ms"] == 0.0
    assert parts["idle_ms"] is parts["exposed_ms"] is parts["hidden_ms"] is None
    for name in ("communication_ms", "busy_ms", "idle_ms", "wait_ms", "transfer_ms", "unsplit_ms"):
        assert kernels[name] is None, name
    assert main(["report", str(folder), "--all"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "c10d called collectives, but no kernel of communication was recorded" in text
    assert "12 collectives were called, but their kernels were not recorded" in text
    assert "bound by" not in text
    assert "needs no change" not in text


def test_ranks_without_kernels_are_left_out(tmp_path: Path) -> None:
    folder = job(tmp_path, of_both(0), of_host())
    world = analyse_in_detail(folder)[0].worlds[0]
    assert world.recording.missing_ranks == (1,)
    assert world.parts.exposed_ms == pytest.approx(1.0)
    assert world.parts.idle_ms == pytest.approx(3.0)
    assert any(
        "recorded on rank 1, which therefore is left out" in p for p in world.recording.problems
    )


def test_a_rank_without_kernels_is_left_out_though_it_has_times_of_gloo(tmp_path: Path) -> None:
    barriers = [
        annotation("gloo:barrier", 5e9 + 10_000 * step + 9600, 5e9 + 10_000 * step + 9900, tid=7)
        for step in range(12)
    ]
    folder = job(tmp_path, of_both(0), of_host() + barriers)
    world = analyse_in_detail(folder)[0].worlds[0]
    assert world.recording.missing_ranks == (1,)
    assert world.parts.exposed_ms == pytest.approx(1.0)


@pytest.mark.parametrize("with_launches", [True, False])
@pytest.mark.parametrize("missing", [range(6), range(6, 12), range(4, 8)])
def test_steps_without_kernels_are_left_out(
    tmp_path: Path, missing: range, with_launches: bool
) -> None:
    def is_kept(event: Event) -> bool:
        step = int((event["ts"] - 5e9) // 10_000)
        if event["cat"] == "cuda_runtime":
            return with_launches
        return event["cat"] != "kernel" or step not in missing

    ranks = [[e for e in of_both(rank) if is_kept(e)] for rank in (0, 1)]
    world = analyse_in_detail(job(tmp_path, *ranks))[0].worlds[0]
    assert world.timing.measured_steps == 12 - len(missing)
    assert world.parts.exposed_ms == pytest.approx(0.9995)
    assert world.parts.unphased_compute_ms == pytest.approx(6.0)
    assert world.parts.idle_ms == pytest.approx(3.0005)
    assert any(
        f"kernels of {len(missing)} of 12 steps were not" in p for p in world.recording.problems
    )


def test_idle_steps_of_a_whole_recording_stay(tmp_path: Path) -> None:
    events = [
        e
        for e in of_both(0)
        if not (int((e["ts"] - 5e9) // 10_000) in (4, 5) and e["name"][:8] != "Profiler")
    ]
    world = analyse_in_detail(job(tmp_path, events))[0].worlds[0]
    assert world.timing.measured_steps == 12
    assert world.parts.idle_ms == pytest.approx((10 * 3 + 2 * 10) / 12)


@pytest.mark.parametrize("numbered", [True, False])
def test_one_lost_kernel_concerns_its_own_step_only(tmp_path: Path, numbered: bool) -> None:
    """Rank 1 begins each all-reduce 1 µs after rank 0."""
    ranks = [of_both(0, numbered=numbered), of_both(1, numbered=numbered)]
    ranks[1] = [
        e for e in ranks[1] if not (e["cat"] == "kernel" and e["args"].get("correlation") == 41)
    ]
    result = analyse_in_detail(job(tmp_path, *ranks))[0]
    world = result.worlds[0]
    assert not result.incidents
    assert world.parts.unsplit_ms == pytest.approx(1 / 12 / 2, rel=1e-3)
    assert world.parts.wait_ms == pytest.approx(0.001 * 11 / 12 / 2, rel=1e-3)
    lost = "rank 1: 1 kernel that c10d launched was not recorded and is missing from all figures"
    assert lost in world.recording.problems


def test_without_steps_a_lost_kernel_leaves_unnumbered_calls_unmatched(tmp_path: Path) -> None:
    ranks = [
        [e for e in of_both(rank, numbered=False) if not e["name"].startswith("Profiler")]
        for rank in (0, 1)
    ]
    ranks[1] = [
        e for e in ranks[1] if not (e["cat"] == "kernel" and e["args"].get("correlation") == 41)
    ]
    recording = read_recording(job(tmp_path, *ranks))
    assert recording is not None
    seqs = [columns.collectives(trace).seq for trace in recording.traces.values()]
    assert not {*seqs[0].tolist()} & {*seqs[1].tolist()} - {NO_SEQ}
