from __future__ import annotations

import gzip
import io
import json
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from commprof.analysis.run import analyse_in_detail
from commprof.analysis.verdict import verdict
from commprof.analysis.world import WorldResult
from commprof.commands import main
from commprof.errors import CommprofError
from commprof.recordings.profiler import read_recording
from commprof.report import table
from commprof.report.export import as_json
from commprof.trace import columns
from tests.support.builders.profiler_traces import (
    Event,
    annotation,
    both,
    document,
    kernel,
    rank_events,
    write,
)

_PLACES = [place / "shared/data/profiler_traces" for place in Path(__file__).parents[4:6]]
#: ``shared`` lies beside the repository, or beside the folder that holds all worktrees.
DATA = next((place for place in _PLACES if place.exists()), _PLACES[0])
DLRM, RESNET, TORCHREC = (
    DATA / name
    for name in (
        "dlrm_8xV100.tar.gz",
        "ddp_resnet50_rank0_of_2xA100.json.gz",
        "rank0_of_16xA100.json.gz",
    )
)
with_data = pytest.mark.skipif(not DLRM.exists(), reason="no recordings beside the repository")


def world_of(path: Path) -> WorldResult:
    result, _ = analyse_in_detail(path)
    assert len(result.worlds) == 1
    return result.worlds[0]


def text_of(path: Path) -> str:
    result, details = analyse_in_detail(path)
    return " ".join(table.render(result, 10_000, verdict(result, details)).split())


def test_parts_of_a_step_equal_hand_computed_values(tmp_path: Path) -> None:
    world = world_of(both(tmp_path / "job"))
    assert (world.world_size, world.timing.steps, world.timing.warmup_steps) == (2, 4, 0)
    first, second = world.ranks
    assert first.kernels is not None
    assert second.kernels is not None
    assert first.parts.step_ms == pytest.approx(1.0)
    assert first.parts.exposed_ms == pytest.approx(0.25)
    assert (first.parts.wait_ms, first.parts.transfer_ms) == pytest.approx((0.15, 0.1))
    assert first.kernels.communication_ms == pytest.approx(0.3)
    assert (first.kernels.wait_ms, first.kernels.transfer_ms) == pytest.approx((0.2, 0.1))
    assert first.kernels.compute_ms == pytest.approx(0.65)
    assert (first.kernels.busy_ms, first.kernels.idle_ms) == pytest.approx((0.9, 0.1))
    assert second.parts.exposed_ms == second.kernels.communication_ms == pytest.approx(0.1)
    assert (second.kernels.wait_ms, second.kernels.transfer_ms) == pytest.approx((0.0, 0.1))


def test_the_rank_that_others_wait_for_is_named(tmp_path: Path) -> None:
    world = world_of(both(tmp_path / "job"))
    assert world.lateness.late_rank is not None
    assert (world.lateness.late_rank.rank, world.lateness.late_rank.measured_steps) == (1, 4)
    assert world.lateness.late_rank.p_value < 1e-6
    assert "The other ranks wait for rank 1" in text_of(tmp_path / "job")
    assert "(probability of this by chance: p = 0.0000)" in text_of(tmp_path / "job")


@pytest.mark.parametrize("offset_us", [-3.2e6, 250.0, 7e7])
def test_a_clock_offset_between_ranks_does_not_change_the_result(
    tmp_path: Path, offset_us: float
) -> None:
    world = world_of(both(tmp_path / "job", ahead_us=offset_us))
    assert world.recording.clocks_shared
    assert world.parts.wait_ms == pytest.approx(0.075, abs=1e-3)
    assert world.lateness.late_rank is not None
    assert world.lateness.late_rank.rank == 1


def test_clock_drift_between_ranks_is_corrected(tmp_path: Path) -> None:
    """A clock that gains 50 ppm is wrong by 200 µs after 4 s."""
    ranks = [rank_events(0, steps=4000), rank_events(1, drift=50e-6, steps=4000)]
    folder = write(tmp_path / "job", [document(events, rank) for rank, events in enumerate(ranks)])
    world = world_of(folder)
    assert world.recording.clocks_shared
    assert world.recording.clock_error_us < 60
    assert world.parts.wait_ms == pytest.approx(0.075, abs=0.01)


@pytest.mark.parametrize(
    ("drifts", "said"),
    [
        ((0, 0.5), "the clock of rank 1 ran at 1.5 times the rate of rank 0's"),
        ((0.02, 0), "the clock of rank 0 ran at 1.02 times the rate of rank 1's"),
    ],
)
def test_a_clock_that_was_stepped_while_the_profiler_recorded_is_named(
    tmp_path: Path, drifts: tuple[float, float], said: str
) -> None:
    """A step of the clock stretches all durations.

    See findings/profiler_clock_step_stretches_all.sh.
    """
    ranks = [rank_events(rank, drift=drift, steps=4000) for rank, drift in enumerate(drifts)]
    folder = write(tmp_path / "job", [document(events, rank) for rank, events in enumerate(ranks)])
    world = world_of(folder)
    assert not world.recording.clocks_shared
    assert np.isnan(world.parts.wait_ms)
    assert said in text_of(folder)


def test_with_jumping_clocks_wait_and_wire_are_unknown(tmp_path: Path) -> None:
    events = rank_events(1, steps=8)
    for number, event in enumerate(events):
        event["ts"] += 700.0 * (number // 4 % 3)
    folder = write(tmp_path / "job", [document(rank_events(0, steps=8), 0), document(events, 1)])
    world = world_of(folder)
    assert not world.recording.clocks_shared
    assert np.isnan(world.parts.wait_ms)
    assert np.isnan(world.parts.transfer_ms)
    assert "too much to separate waiting from transfer" in text_of(folder)


def test_wait_and_wire_of_a_single_recorded_rank_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_text(document(rank_events(0), 0))
    world = world_of(path)
    kernels = world.ranks[0].kernels
    assert kernels is not None
    assert world.recording.missing_ranks == (1,)
    assert np.isnan(kernels.wait_ms)
    assert np.isnan(kernels.transfer_ms)
    assert kernels.unsplit_ms == pytest.approx(0.3)
    parts = json.loads(as_json.render(analyse_in_detail(path)[0]))["runs"][0]["rank_results"][0]
    assert parts["kernels"]["wait_ms"] is None
    assert parts["parts"]["transfer_ms"] is None
    assert "only rank 0 was recorded" in text_of(path)


def test_unnumbered_collectives_are_matched_from_the_first_common_step(tmp_path: Path) -> None:
    ranks = [rank_events(0, steps=5), [e for e in rank_events(1, steps=5) if e["ts"] >= 5e9 + 1000]]
    for event in [event for events in ranks for event in events]:
        event.get("args", {}).pop("Seq", None)
    folder = write(tmp_path / "job", [document(events, rank) for rank, events in enumerate(ranks)])
    world = world_of(folder)
    assert world.timing.steps == 4
    assert world.parts.wait_ms == pytest.approx(0.075, abs=1e-3)
    assert world.parts.unsplit_ms == pytest.approx(0, abs=1e-9)


def test_the_range_around_the_launch_names_an_ambiguous_kernel(tmp_path: Path) -> None:
    """NCCL may run an all_gather with a kernel whose name says SendRecv."""
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernelExC", "pid": 1, "tid": 1}
    around = annotation("nccl:_all_gather_base", 9, 12)
    around["args"] = {"Input Dims": [[50, 2]], "Input type": ["float"]}
    events = [
        annotation("ProfilerStep#1", 0, 100),
        around,
        {**launch, "ts": 10, "dur": 1, "args": {"correlation": 5}},
        kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", 20, 40, 3, correlation=5),
        kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", 50, 60, 3, correlation=6),
    ]
    path = tmp_path / "one.json"
    path.write_text(document(events, 0, 4))
    known, guessed = sorted(
        world_of(path).communication.collectives, key=lambda row: -row.times.exposed_ms
    )
    assert (known.kind.op, known.kind.size_bytes, known.kind.dtype) == (
        "all_gather_into_tensor",
        (1600,) * 2,
        "float",
    )
    assert guessed.kind.op == "other"
    assert "cannot be separated in 1 kernel of send, recv or an unknown operation" in text_of(path)


def test_unmarked_steps_are_found_from_repeating_collectives(tmp_path: Path) -> None:
    unmarked = [e for e in rank_events(0, steps=12) if not e["name"].startswith("Profiler")]
    path = tmp_path / "repeats.json"
    path.write_text(document(unmarked, 0))
    assert world_of(path).timing.steps == 11
    assert "1 collective repeats" in text_of(path) or "no step is marked" in text_of(path)
    (path := tmp_path / "whole.json").write_text(document(unmarked[:4], 0))
    assert world_of(path).timing.steps == 1
    assert "the whole recording counts as one step" in text_of(path)


def test_a_recording_without_communication_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "alone.json"
    path.write_text(
        document([kernel("gemm", 0, 5), kernel("deep_ep::internode::combine", 5, 9)], 0)
    )
    with pytest.raises(CommprofError, match=r"no recognisable communication.*deep_ep"):
        analyse_in_detail(path)


def test_archives_and_gzipped_traces_are_read_alike(tmp_path: Path) -> None:
    texts = {f"w{rank}/trace.json": document(rank_events(rank), rank) for rank in (0, 1)}
    folder = tmp_path / "gz"
    folder.mkdir()
    with (
        tarfile.open(tmp_path / "job.tar.gz", "w:gz") as tar,
        zipfile.ZipFile(tmp_path / "job.zip", "w") as packed,
    ):
        for number, (name, text) in enumerate(texts.items()):
            inner = tarfile.TarInfo(name)
            inner.size = len(text)
            tar.addfile(inner, io.BytesIO(text.encode()))
            packed.writestr(f"{name}.gz", gzip.compress(text.encode()))
            (folder / f"{number}.json.gz").write_bytes(gzip.compress(text.encode()))
    for path in (tmp_path / "job.tar.gz", tmp_path / "job.zip", folder):
        found = read_recording(path)
        assert found is not None, path
        assert sorted(found.traces) == [0, 1]
        assert len(columns.collectives(found.traces[1])) == 4


DAMAGES = {
    "not JSON": b'{"traceEvents": [}',
    "nested": b'{"traceEvents": [' + b"[" * 200_000,
    "not an object": b'["traceEvents"]',
    "no events": b'{"traceEvents": 5, "distributedInfo": {"rank": 0}}',
    "huge number": b'{"distributedInfo": 1' + b"0" * 6000 + b', "traceEvents": []}',
    "zeros": b'{"traceEvents":' + bytes(1000),
    "packed": gzip.compress(b'{"traceEvents": [')[:-9],
    "endless text": b'{"traceEvents": ["' + b"x" * (20 << 20),
    "nothing that ran": b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": 5, "ts": 1}]}',
}


@pytest.mark.parametrize("data", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_trace_is_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(data)
    with pytest.raises(CommprofError) as found:
        analyse_in_detail(path)
    assert "\n" not in str(found.value)
    assert str(path) in str(found.value)


def test_a_decompression_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb") as file:
        file.write(b'{"traceEvents": [')
        for _ in range(90):
            file.write(b" " * (1 << 20))
    with pytest.raises(CommprofError, match="unpacks to more than 300 times its size"):
        analyse_in_detail(path)


def test_events_before_the_end_of_a_truncated_trace_are_used(tmp_path: Path) -> None:
    text = document(rank_events(0, steps=40), 0)
    path = tmp_path / "cut.json"
    path.write_text(text[: len(text) // 2])
    assert 15 <= world_of(path).timing.steps <= 21
    said = "only the first part of the trace could be read, because it is cut off or damaged"
    assert said in text_of(path)


def test_events_with_unusable_values_are_counted_and_left_out(tmp_path: Path) -> None:
    odd: list[Event] = [
        {**kernel("gemm", 0, 1), "ts": value, "dur": length}
        for value, length in [
            (float("nan"), 1),
            (1e300, 1),
            (-5, 1),
            (1, None),
            ([], 1),
            (10**30, 1),
        ]
    ]
    odd += [{"ph": "X", "cat": "kernel"}, {"ph": "X", "cat": [], "name": {}}, {"args": 5}]
    odd.append(kernel("ncclKernel", 1, 2, **{"Process Group Ranks": "[" * 900, "Seq": 1.5}))
    path = tmp_path / "odd.json"
    path.write_text(document([*odd, *rank_events(0)], 0))
    assert world_of(path).timing.steps == 4
    assert "commprof left out 6 events without usable times" in text_of(path)


def in_lines(rank: int) -> str:
    """Tests replace ``@`` in the trace by a quote or by nothing."""
    events = [
        {**event, "name": "gemm@a@"} if event.get("name") == "gemm" else event
        for event in rank_events(rank)
    ]
    head = json.loads(document(events, rank, run="a @long@ run"))
    return json.dumps({"run": head.pop("run"), **head}, indent=2)


@pytest.mark.parametrize("scanned", [True, False], ids=["scanned", "in Python"])
def test_events_with_quotes_in_names_are_left_out(
    tmp_path: Path, scanned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.profiler does not escape quotes in names, descriptions and metadata."""
    if not scanned:
        monkeypatch.setitem(sys.modules, "commprof._reading", None)
    for rank in range(2):
        quoted = in_lines(rank).replace("@", '"')
        with pytest.raises(json.JSONDecodeError):
            json.loads(quoted)
        (tmp_path / f"rank{rank}.json").write_text(quoted)
    world = world_of(tmp_path)
    assert (world.world_size, world.timing.steps) == (2, 4)
    assert world.ranks[0].kernels is not None
    assert world.ranks[0].kernels.communication_ms == pytest.approx(0.3)
    text = text_of(tmp_path)
    assert "commprof left out 4 events with text that is not JSON" in text
    assert "rank, process groups, metadata) is not JSON and was left out" in text


def test_a_group_description_with_quotes_leaves_the_collectives(tmp_path: Path) -> None:
    for rank in range(2):
        text = in_lines(rank).replace("@", "").replace('"nccl"', '"nccl "inner""')
        (tmp_path / f"rank{rank}.json").write_text(text)
    world = world_of(tmp_path)
    assert (world.world_size, world.timing.steps) == (2, 4)
    assert world.parts.exposed_ms == pytest.approx((0.25 + 0.1) / 2)
    text = text_of(tmp_path)
    assert "rank, process groups, metadata) is not JSON and was left out" in text


def test_gloo_collectives_are_read_from_host_ranges(tmp_path: Path) -> None:
    """The collective counts from c10d's operator at 10 µs, not from gloo's range at 20 µs."""
    operator = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1}
    events = [annotation("ProfilerStep#0", 0, 100)]
    events += [
        {**operator, "name": "aten::mm", "ts": 0, "dur": 40},
        {**operator, "name": "c10d::allreduce_", "ts": 10, "dur": 1},
        {**annotation("gloo:all_reduce", 20, 80, tid=2), "args": {}},
        {**operator, "name": "aten::add", "ts": 80, "dur": 10},
    ]
    path = tmp_path / "gloo.json"
    path.write_text(document(events, 0))
    world = world_of(path)
    assert world.ranks[0].kernels is None
    assert world.parts.exposed_ms == pytest.approx(0.04)
    assert world.communication.collectives[0].times.duration.median_ms == pytest.approx(0.07)


def of_host(name: str, begin_us: float, end_us: float, tid: int = 1) -> Event:
    span = {"ts": begin_us, "dur": end_us - begin_us}
    return {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": tid, "name": name, **span}


@pytest.mark.parametrize(
    ("beside", "exposed_us"),
    [
        ([], 80),
        ([of_host("c10d::_allgather_base_", 10, 40)], 50),
        ([of_host("_c10d_functional::wait_tensor", 20, 90)], 80),
        # Time in a forward pass is work, unless the pass issues the collective.
        ([annotation("DistributedDataParallel.forward", 30, 60)], 50),
        ([annotation("DistributedDataParallel.forward", 5, 60)], 80),
        # gloo's thread may close the range after the waiting thread went on.
        ([of_host("aten::mm", 89, 95)], 79),
    ],
)
def test_host_work_during_a_gloo_collective_hides_it(
    tmp_path: Path, beside: list[Event], exposed_us: float
) -> None:
    events = [annotation("ProfilerStep#0", 0, 100)]
    if not any(event["name"].startswith("c10d::") for event in beside):
        events.append(of_host("c10d::_allgather_base_", 10, 10))
    events += [*beside, annotation("gloo:all_gather", 20, 90, tid=2)]
    path = tmp_path / "gloo.json"
    path.write_text(document(events, 0))
    world = world_of(path)
    assert [row.kind.op for row in world.communication.collectives] == ["all_gather_into_tensor"]
    assert world.parts.exposed_ms == pytest.approx(exposed_us / 1000)


def test_gloo_collectives_that_begin_out_of_order_keep_their_own_issue(tmp_path: Path) -> None:
    events = [
        *(annotation("ProfilerStep#0", 0, 100), of_host("aten::mm", 5, 10)),
        *(of_host("c10d::allreduce_", 10, 11), of_host("c10d::_allgather_base_", 12, 13)),
        annotation("gloo:all_gather", 20, 40, tid=2),
        annotation("gloo:all_reduce", 21, 60, tid=3),
    ]
    path = tmp_path / "gloo.json"
    path.write_text(document(events, 0))
    found = {
        row.kind.op: row.times.duration.median_ms
        for row in world_of(path).communication.collectives
    }
    assert found == pytest.approx({"all_reduce": 0.05, "all_gather_into_tensor": 0.028})


def test_time_before_a_thread_works_during_a_collective_is_not_waiting(tmp_path: Path) -> None:
    events = [
        *(annotation("ProfilerStep#0", 0, 1000), of_host("c10d::allreduce_", 10, 20)),
        *(of_host("aten::mm", 500, 600), annotation("gloo:all_reduce", 30, 900, tid=2)),
    ]
    path = tmp_path / "gloo.json"
    path.write_text(document(events, 0))
    assert world_of(path).parts.exposed_ms == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("copy", "exposed_us"),
    [("torch.distributed.ddp.reducer::copy_bucket_to_grad", 480), ("aten::copy_", 0)],
)
def test_ddps_copy_of_a_bucket_ends_its_wait_for_the_bucket(
    tmp_path: Path, copy: str, exposed_us: float
) -> None:
    """Without a core, gloo's thread may close its range long after the bucket is complete."""
    events = [
        *(annotation("ProfilerStep#0", 0, 1000), of_host("c10d::allreduce_", 10, 20)),
        *(of_host("aten::as_strided", 500, 501), of_host(copy, 502, 510)),
        *(of_host("aten::add_", 512, 1000), annotation("gloo:all_reduce", 30, 900, tid=2)),
    ]
    path = tmp_path / "gloo.json"
    path.write_text(document(events, 0))
    # The time from 501 µs to 502 µs may belong to the next bucket.
    assert world_of(path).parts.exposed_ms == pytest.approx(exposed_us / 1000, abs=0.002)


@with_data
def test_the_dlrm_recording_of_8_gpus_has_the_known_times_and_waiting() -> None:
    world = world_of(DLRM)
    ms = {
        "exposed": (5537, 11056, 3217, 9450, 6550, 6211, 3289, 1580),
        "compute": (1034, 1246, 1068, 1240, 1126, 1041, 1051, 1059),
        "busy": (6571, 12302, 4285, 10690, 7676, 7252, 4340, 2639),
    }
    for rank, exposed, compute, busy in zip(world.ranks, *ms.values(), strict=True):
        kernels = rank.kernels
        assert kernels is not None
        assert rank.parts.exposed_ms == pytest.approx(exposed / 1000, rel=1e-3)
        assert kernels.compute_ms == pytest.approx(compute / 1000, rel=1e-3)
        assert kernels.busy_ms == pytest.approx(busy / 1000, rel=1e-3)
        assert kernels.wait_ms + kernels.transfer_ms == pytest.approx(
            kernels.communication_ms, rel=1e-3
        )
        assert 0.01 <= kernels.transfer_ms / rank.parts.step_ms <= 0.02
    assert world.lateness.late_rank is None
    most = world.lateness.most_waited_for
    assert (most.rank, most.share) == (7, pytest.approx(0.78, abs=0.005))
    assert 0 < world.recording.clock_error_us <= 10
    assert {row.kind.op for row in world.communication.collectives} == {"all_to_all", "all_reduce"}
    few = "rank 7 caused 78% of the waiting, but 1 step is too few to rule out chance; 4 steps are"
    assert few in text_of(DLRM)


@with_data
def test_the_resnet_recording_of_one_rank_has_the_known_times_and_buckets() -> None:
    result, details = analyse_in_detail(RESNET)
    world = result.worlds[0]
    exposed = details[0].parts_ms["exposed"][0]
    assert exposed == pytest.approx([10.0, 10.4, 18.7], abs=0.06)
    reduced = [row for row in world.communication.collectives if row.kind.op == "all_reduce"]
    assert sum(row.calls_per_step for row in reduced) == 5
    assert sum(row.total_bytes for row in reduced) == 3 * 4 * 25_557_032
    assert "all-reduces 5 gradient buckets per step, 25,557,032 elements in all" in text_of(RESNET)
    assert np.isnan(world.parts.wait_ms)
    assert np.isnan(world.parts.transfer_ms)


@with_data
def test_operations_of_the_torchrec_recording_are_distinguished() -> None:
    world = world_of(TORCHREC)
    ops = {row.kind.op for row in world.communication.collectives}
    assert ops >= {"all_to_all", "all_reduce", "reduce_scatter_tensor", "all_gather_into_tensor"}
    assert 0.13 <= world.parts.exposed_ms / world.parts.step_ms <= 0.17


@pytest.mark.slow
@pytest.mark.measures
def test_large_traces_take_at_most_three_times_their_decoding(
    tmp_path: Path,
) -> None:
    filler = [{**kernel("gemm", 0, 1), "cat": "ac2g", "id": 1}] * 84_000
    folder = tmp_path / "job"
    documents = [document([*rank_events(0, steps=3200), *filler], rank, 8) for rank in range(8)]
    write(folder, documents)
    began = time.process_time()
    for text in documents:
        json.loads(text)
    decoded = time.process_time()
    analyse_in_detail(folder)
    assert time.process_time() - decoded < 3 * (decoded - began)


def test_traces_of_several_jobs_are_refused(tmp_path: Path) -> None:
    texts = [document(rank_events(0), 0), document(rank_events(1), 1, 8)]
    with pytest.raises(CommprofError, match=r"several jobs: .* of 2 ranks, .* of 8 ranks"):
        analyse_in_detail(write(tmp_path / "job", texts))


def test_archives_can_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.json.gz"
    path.write_bytes(gzip.compress(document(rank_events(0, steps=30), 0).encode()))
    assert main(["compare", str(path), str(path)]) == 0
    assert "the steps do not differ significantly" in capsys.readouterr().out
