from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from commprof.analysis.run import analyse_in_detail
from commprof.analysis.verdict import verdict
from commprof.commands import main
from commprof.report.export import as_json
from tests.support.builders.profiler_traces import (
    Event,
    all_reduce,
    annotation,
    document,
    kernel,
    rank_events,
    write,
)

PARTS = (
    "data",
    "forward",
    "backward",
    "optimizer",
    "unphased_compute",
    "exposed",
    "copies",
    "idle",
)


def copy(name: str, begin_us: float, end_us: float, category: str = "gpu_memcpy") -> Event:
    return {**kernel(name, begin_us, end_us, stream=13), "cat": category}


def launched(name: str, begin_us: float, end_us: float, at_us: float, number: int) -> list[Event]:
    launch = {**annotation("cudaLaunchKernel", at_us, at_us + 1), "cat": "cuda_runtime"}
    return [
        {**launch, "args": {"correlation": number}},
        kernel(name, begin_us, end_us, correlation=number),
    ]


def mixed(steps: int = 3) -> list[Event]:
    events = []
    for step in range(steps):
        at, number = 5e9 + 1000 * step, 100 * step
        events += [
            annotation(f"ProfilerStep#{step}", at, at + 1000),
            annotation("## forward ##", at + 1, at + 10),
            annotation("Optimizer.step#SGD.step", at + 30, at + 40),
            *launched("gemm", at + 100, at + 300, at + 2, number + 1),
            *launched("gemm", at + 250, at + 400, at + 20, number + 2),
            all_reduce(at + 350, at + 600, seq=step),
            copy("Memcpy DtoD (Device -> Device)", at + 450, at + 500),
            copy("Memcpy HtoD (Pinned -> Device)", at + 550, at + 650),
            copy("Memset (Device)", at + 640, at + 680, "gpu_memset"),
            *launched("adam", at + 670, at + 700, at + 31, number + 3),
            copy("Memcpy PtoP (Device -> Device)", at + 800, at + 850),
        ]
    return events


EXPECTED_MS = {
    **{"data": 0, "forward": 0.15, "backward": 0, "optimizer": 0.03, "unphased_compute": 0.15},
    **{"exposed": 0.15, "copies": 0.05 + 0.07 + 0.05, "idle": 0.1 + 0.1 + 0.15},
}


def test_the_parts_of_a_gpu_s_step_equal_hand_computed_values(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(document(mixed(), 0, 1))
    result, (detail,) = analyse_in_detail(path)
    (run,) = json.loads(as_json.render(result))["runs"]
    for shown in (run["aggregated_metrics"]["parts"], run["rank_results"][0]["parts"]):
        assert {name: shown[f"{name}_ms"] for name in PARTS} == pytest.approx(EXPECTED_MS)
        assert sum(shown[f"{name}_ms"] for name in PARTS) == pytest.approx(shown["step_ms"])
        of_other = ("unphased_compute_ms", "copies_ms", "idle_ms")
        assert sum(shown[name] for name in of_other) == pytest.approx(shown["other_ms"])
    kernels = run["rank_results"][0]["kernels"]
    assert kernels["compute_ms"] == pytest.approx(0.33)
    assert (kernels["copies_ms"], kernels["idle_ms"]) == pytest.approx((0.17, 0.35))
    for name, expected in EXPECTED_MS.items():
        assert detail.parts_ms[name].tolist() == [pytest.approx([expected] * 3)]


@pytest.mark.parametrize(
    ("name", "category", "hides"),
    [
        ("__amd_rocclr_copyBuffer.kd", "kernel", True),
        ("MEMORY_COPY_DEVICE_TO_DEVICE", "kernel", True),
        ("MEMORY_COPY_HOST_TO_DEVICE", "kernel", False),
        ("__amd_rocclr_fillBufferAligned.kd", "kernel", False),
        ("Memcpy DtoH (Device -> Pageable)", "gpu_memcpy", False),
        ("Memset (Device)", "gpu_memset", False),
    ],
)
def test_copies_are_copies_whatever_they_are_recorded_as(
    tmp_path: Path, name: str, category: str, hides: bool
) -> None:
    events = [
        annotation("ProfilerStep#1", 0, 1000),
        kernel("gemm", 0, 100),
        all_reduce(200, 400, seq=1),
        copy(name, 300, 500, category),
    ]
    (tmp_path / "rank0.json").write_text(document(events, 0))
    parts = analyse_in_detail(tmp_path / "rank0.json")[0].worlds[0].parts
    assert parts.unphased_compute_ms == pytest.approx(0.1)
    assert parts.exposed_ms == pytest.approx(0.1 if hides else 0.2)
    assert parts.copies_ms == pytest.approx(0.2 if hides else 0.1)
    assert parts.idle_ms == pytest.approx(0.6)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    ("runtime", "launch", "backend"),
    [
        ("cuda_runtime", "cudaLaunchKernel", "nccl"),
        ("xpu_runtime", "urEnqueueKernelLaunch", "xccl"),
        ("privateuse1_runtime", "LaunchKernel", "hccl"),
        ("privateuse1_runtime", "LaunchKernel", "mydevice_ccl"),
    ],
)
def test_devices_of_all_kinds_have_these_parts(
    tmp_path: Path, runtime: str, launch: str, backend: str, named: bool
) -> None:
    name = "ncclDevKernel_AllReduce(x)" if backend == "nccl" else "oneccl_allreduce(x)"
    name = name if backend in ("nccl", "xccl") else "Kernel_0x7f3"
    events = []
    for step in range(3):
        at, number = 5e9 + 1000 * step, 10 * step
        launches = [
            {**annotation(launch, at + place, at + place + 1), "cat": runtime} for place in (2, 12)
        ]
        for place, event in enumerate(launches):
            event["args"] = {"correlation": number + place}
        around = annotation(f"{backend}:all_reduce", at + 10, at + 15)
        around["args"] = {"Input Dims": [[1000]], "Input type": ["float"]}
        events += [
            annotation(f"ProfilerStep#{step}", at, at + 1000),
            *(*launches, around),
            kernel("gemm", at + 100, at + 500, correlation=number),
            kernel(name, at + 400, at + 700, 20, correlation=number + 1),
        ]
    whole = json.loads(document(events, 0))
    whole["distributedInfo"]["backend"] = backend if named else ""
    (tmp_path / "rank0.json").write_text(json.dumps(whole))
    world = analyse_in_detail(tmp_path / "rank0.json")[0].worlds[0]
    (row,) = world.communication.collectives
    assert (row.kind.op, row.calls, row.kind.size_bytes) == ("all_reduce", 3, (4000, 4000))
    assert world.parts.unphased_compute_ms == pytest.approx(0.4)
    assert world.parts.exposed_ms == pytest.approx(0.2)
    assert world.parts.idle_ms == pytest.approx(0.4)


def test_a_script_s_own_range_makes_its_kernels_no_communication(tmp_path: Path) -> None:
    events = []
    for step in range(3):
        at = 5e9 + 1000 * step
        events += [
            annotation(f"ProfilerStep#{step}", at, at + 1000),
            annotation("moe:all_to_all", at + 1, at + 9),
            *launched("gemm", at + 100, at + 500, at + 5, step),
            annotation("nccl:all_to_all", at + 20, at + 30),
        ]
    (tmp_path / "rank0.json").write_text(document(events, 0))
    parts = analyse_in_detail(tmp_path / "rank0.json")[0].worlds[0].parts
    assert parts.unphased_compute_ms == pytest.approx(0.4)
    assert math.isnan(parts.exposed_ms)


def rows_of(path: Path, table: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    assert main(["report", str(path), "--format", "csv", "--rows", table]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def test_text_table_page_and_rows_carry_the_same_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(document(mixed(), 0, 1))
    for table in ("worlds", "ranks", "steps"):
        for row in rows_of(path, table, capsys):
            found = {name: float(row[f"{name}_ms"]) for name in PARTS}
            assert found == pytest.approx(EXPECTED_MS)
    assert main(["report", str(path), "--all"]) == 0
    text = capsys.readouterr().out
    header = ["ranks", "data", "compute:", "exposed", "opti-", "copies", "idle", "=", "step"]
    assert any(line.split()[:9] == header for line in text.splitlines())
    figures = ["2", "0.00", "0.15", "0.00", "0.15", "0.15", "0.03", "0.17", "0.35", "1.00"]
    assert any(line.split()[:10] == figures for line in text.splitlines())
    for shown in ("compute, phase not known 0.15 ms 15.0%", "copies 0.17 ms 17.0%"):
        assert shown in " ".join(text.split())
    assert main(["report", str(path), "--format", "html", "-o", "-"]) == 0
    page = capsys.readouterr().out
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    found = {name: data["worlds"][0]["mean"][name] for name in PARTS}
    assert found == pytest.approx(EXPECTED_MS)


def said_of(tmp_path: Path, events: list[Event]) -> Any:
    path = tmp_path / "rank0.json"
    path.write_text(document(events, 0, 2))
    result, details = analyse_in_detail(path)
    found = verdict(result, details)
    assert found is not None
    return found


def busy_step(busy_us: float, phase: str, steps: int = 4) -> list[Event]:
    events = []
    for step in range(steps):
        at = 5e9 + 1000 * step
        events += [
            annotation(f"ProfilerStep#{step}", at, at + 1000),
            *launched("gemm", at + 20, at + 20 + busy_us, at + 5, step + 1),
            all_reduce(at + 980, at + 990, seq=step),
        ]
        events += [annotation(phase, at + 1, at + 9)] if phase else []
    return events


@pytest.mark.parametrize(
    ("busy_us", "phase", "part", "words"),
    [
        (900, "", "compute", "bound by compute (phase not known): 90.0%"),
        (900, "## forward ##", "compute", "bound by compute (forward and backward): 90.0%"),
        (900, "Optimizer.step#SGD.step", "optimizer", "bound by the optimizer: 90.0%"),
        (100, "", "idle", "bound by idle GPUs (no kernel and no copy ran): 89.0%"),
        (100, "## forward ##", "idle", "bound by idle GPUs (no kernel and no copy ran): 89.0%"),
    ],
)
def test_the_verdict_names_a_phase_only_where_it_is_known(
    tmp_path: Path, busy_us: float, phase: str, part: str, words: str
) -> None:
    found = said_of(tmp_path, busy_step(busy_us, phase))
    (binding,) = found.bindings
    assert binding.part == part
    assert words in found.headline


def test_the_verdict_says_how_much_of_compute_has_a_known_phase(tmp_path: Path) -> None:
    events = busy_step(300, "## forward ##")
    for step in range(4):
        at = 5e9 + 1000 * step
        events += launched("gemm", at + 400, at + 900, at + 15, 100 + step)
    found = said_of(tmp_path, events)
    assert "compute (30.0% forward and backward, 50.0% phase not known): 80.0%" in found.headline


@pytest.mark.parametrize(
    ("kind", "hides"),
    [("DtoD", True), ("PtoP", False), ("HtoD", False), ("DtoH", False), ("Unknown", False)],
)
@pytest.mark.parametrize("indent", [None, 1])
def test_the_kind_of_a_copy_may_be_an_argument(
    tmp_path: Path, kind: str, hides: bool, indent: int | None
) -> None:
    copied = copy("Memcpy", 300, 500)
    copied["args"]["copy kind"] = kind  # torch 2.13's recorder over CUPTI writes this argument
    begin = {key: value for key, value in copied.items() if key != "dur"}
    end = {"ph": "E", "pid": copied["pid"], "tid": copied["tid"], "ts": 500}
    for name, of_copy in (("whole", [copied]), ("halves", [{**begin, "ph": "B"}, end])):
        events = [annotation("ProfilerStep#1", 0, 1000), all_reduce(200, 400, seq=1), *of_copy]
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(json.loads(document(events, 0)), indent=indent))
        parts = analyse_in_detail(path)[0].worlds[0].parts
        assert parts.exposed_ms == pytest.approx(0.1 if hides else 0.2)
        assert parts.copies_ms == pytest.approx(0.2 if hides else 0.1)


def test_copies_can_bound_a_step(tmp_path: Path) -> None:
    events = busy_step(100, "")
    for step in range(4):
        at = 5e9 + 1000 * step
        events.append(copy("Memcpy HtoD (Pageable -> Device)", at + 200, at + 900))
    found = said_of(tmp_path, events)
    assert found.bindings[0].part == "copies"
    assert "bound by copies to, from and within the GPUs: 70.0%" in found.headline


def test_a_late_rank_whose_compute_has_no_phase_is_not_late_in_a_phase(tmp_path: Path) -> None:
    ranks = [document(rank_events(rank, steps=30), rank) for rank in (0, 1)]
    result, _ = analyse_in_detail(write(tmp_path / "job", ranks))
    late = result.worlds[0].lateness.late_rank
    assert late is not None
    assert (late.rank, late.late_steps, late.phase) == (1, 30, None)
    assert any("the phase in which it fell behind is not known" in text for text in result.remarks)


def test_a_recording_of_the_host_has_no_parts_of_a_gpu(tmp_path: Path) -> None:
    events = []
    for step in range(3):
        at = 5e9 + 1000 * step
        operator = {**annotation("aten::mm", at + 10, at + 500), "cat": "cpu_op"}
        events += [annotation(f"ProfilerStep#{step}", at, at + 1000), operator]
        events += [annotation("gloo:all_reduce", at + 520, at + 800, tid=3)]
    (tmp_path / "rank0.json").write_text(document(events, 0))
    result, details = analyse_in_detail(tmp_path / "rank0.json")
    (run,) = json.loads(as_json.render(result))["runs"]
    parts = run["aggregated_metrics"]["parts"]
    assert [parts[f"{name}_ms"] for name in ("unphased_compute", "copies", "idle")] == [None] * 3
    found = verdict(result, details)
    assert found is not None
    assert "idle" not in found.headline


@pytest.mark.parametrize(
    ("range_name", "phase"),
    [("## backward ##", "backward"), ("## forward ##", "forward"), ("", "")],
)
def test_a_collective_belongs_to_the_phase_that_launched_it(
    tmp_path: Path, range_name: str, phase: str
) -> None:
    events = []
    for step in range(3):
        at, number = 5e9 + 1000 * step, 10 * step
        events += [
            annotation(f"ProfilerStep#{step}", at, at + 1000),
            annotation("Optimizer.step#SGD.step", at + 30, at + 40),
            *launched("adam", at + 100, at + 300, at + 32, number),
            *launched(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 200, at + 500, at + 5, number + 1
            ),
        ]
        events += [annotation(range_name, at + 1, at + 9)] if range_name else []
    path = tmp_path / "rank0.json"
    path.write_text(document(events, 0, 2))
    result, details = analyse_in_detail(path)
    (row,) = result.worlds[0].communication.collectives
    assert row.phases == ((phase or "other", 3),)
    found = verdict(result, details)
    assert found is not None
    assert "outside of all phases" not in found.next_step.advice
