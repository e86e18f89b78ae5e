"""Events of the host have times in quotes, as torch writes them; NPU events have no category."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from commprof.commands import main
from commprof.recordings.profiler import read_recording
from commprof.recordings.profiler_events import read_events
from commprof.recordings.profiler_rank import rank_in_name
from commprof.recordings.profiler_scan import TraceScanner

Event = dict[str, Any]
PROCESSES = {1: "Python", 2: "Ascend Hardware", 3: "HCCL", 4: "Overlap Analysis", 5: "CANN"}
BASE_US = 1736408883688177
STEPS = 3


def span(pid: int, tid: int, name: str, begin_us: int, dur_us: float, **args: object) -> Event:
    moment = {"ts": f"{BASE_US + begin_us}.250", "dur": dur_us}
    return {"name": name, "pid": pid, "tid": tid, **moment, "args": args, "ph": "X"}


def on_host(name: str, begin_us: int, dur_us: float) -> Event:
    return {**span(1, 1, name, begin_us, dur_us), "cat": "cpu_op"}


def npu_events(groups: str = "HCCL") -> list[Event]:
    """Each step computes until 400 µs, has an all-reduce from 300 µs to 800 µs, and then copies."""
    names = {**PROCESSES, 3: groups}
    found: list[Event] = [
        {"name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}, "ph": "M"}
        for pid, name in names.items()
    ]
    for step in range(STEPS):
        at = 1000 * step
        host, wait = {"Task Type": "PCIE_DMA_SQE"}, {"Task Type": "EVENT_WAIT_SQE"}
        told = {"data_type": "FP32", "count": 250_000, "alg_type": "MESH-RING"}
        found += [
            on_host(f"ProfilerStep#{step}", at, 1000),
            on_host("c10d::allreduce_", at + 20, 30),
            span(2, 2, "aclnnMatmul", at, 400, **{"Task Type": "AI_CORE"}),
            span(4, 0, "Computing", at, 400),
            span(3, 0, f"hcom_allReduce__868_{step}_1", at + 300, 500, **told),
            span(3, 1, "Notify_Wait", at + 300, 450, **{"src rank": 0, "dst rank": 7}),
            span(4, 1, "Communication", at + 300, 500),
            span(2, 4, "EVENT_WAIT", at, 300, **wait),
            span(2, 2, "MEMCPY_ASYNC", at + 850, 50, **host),
            span(2, 2, "MEMCPY_ASYNC", at + 900, 20, **{"Task Type": "SDMA_SQE"}),
            span(4, 3, "Free", at + 800, 200),
            span(5, 1, "AscendCL@aclrtMemcpyAsync", at + 840, 5),
        ]
    return found


def write(path: Path, events: list[Event]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(events))
    return path


def figures(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["report", str(path), "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["runs"][0]["aggregated_metrics"]
    return found


@pytest.mark.parametrize("process", ["HCCL", "Communication"])
def test_time_of_an_npu_is_split(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], process: str
) -> None:
    path = write(tmp_path / "trace_view.json", npu_events(process))
    found = figures(path, capsys)
    parts = found["parts"]
    assert parts["unphased_compute_ms"] == pytest.approx(0.4)
    assert parts["exposed_ms"] == pytest.approx(0.4)
    assert parts["copies_ms"] == pytest.approx(0.07)
    assert parts["idle_ms"] == pytest.approx(0.13)
    (collective,) = found["collectives"]
    assert (collective["op"], collective["dtype"]) == ("all_reduce", "Float")
    assert (collective["size_bytes"], collective["calls_per_step"]) == ([1_000_000] * 2, 1)
    assert collective["duration"]["median_ms"] == pytest.approx(0.5)
    assert (collective["group_size"], collective["busbw_gb_per_s"]) == (None, None)


def test_two_npus_of_a_job_are_not_all_its_ranks(tmp_path: Path) -> None:
    for rank in (0, 1):
        folder = tmp_path / f"rank{rank}_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
        write(folder / "trace_view.json", npu_events())
    recording = read_recording(tmp_path)
    assert recording is not None
    assert sorted(recording.traces) == [0, 1]
    assert not any(trace.recorded.job_size for trace in recording.traces.values() if trace.recorded)
    assert [trace.groups[1].name for trace in recording.traces.values()] == ["868", "868"]


@pytest.mark.parametrize("is_told", [True, False])
def test_the_host_in_a_folder_of_ascend_is_no_rank(tmp_path: Path, is_told: bool) -> None:
    """The profiler writes the rank into the name of a file beside the trace."""
    for process, rank in ((1111, 6), (1112, 5)):
        folder = tmp_path / f"job-worker-0_{process}_20251130101112123_ascend_pt"
        write(folder / "ASCEND_PROFILER_OUTPUT" / "trace_view.json", npu_events())
        if is_told:
            (folder / f"profiler_info_{rank}.json").write_text("{}")
    recording = read_recording(tmp_path)
    assert recording is not None
    assert sorted(recording.traces) == ([5, 6] if is_told else [0, 1])


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("host_12_123456789_ascend_pt/worker0.json", None),
        ("host_12_123456789_ascend_pt/rank7.json", 7),
        ("host_12_123456789_ascend_pt/trace.3.json", 3),
        ("traces/worker0.json", 0),
        ("traces/trace.json", None),
    ],
)
def test_the_rank_in_a_file_s_name_is_read(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


@pytest.mark.parametrize("count", [-5, 0, 2**70])
def test_a_size_that_no_collective_has_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    events = npu_events()
    for event in events:
        if "count" in event["args"]:
            event["args"]["count"] = count
    path = write(tmp_path / "trace_view.json", events)
    assert main(["report", str(path), "--format", "json"]) == 0
    (collective,) = json.loads(capsys.readouterr().out)["runs"][0]["aggregated_metrics"][
        "collectives"
    ]
    assert collective["size_bytes"] is None


def test_tasks_of_an_npu_alone_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [event for event in npu_events() if event["pid"] not in (3, 4)]
    path = write(tmp_path / "trace_view.json", events)
    assert main(["report", str(path), "--all"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "12 events of a device such as Ascend's NPU are of a kind that is not read" in text
    assert "commprof does not read the events that show what the device did" in text
    assert "ProfilerActivity.CUDA" not in text


@pytest.mark.parametrize("scanner", [TraceScanner, lambda: None])
def test_times_since_1970_are_read_to_the_ns(scanner: Any) -> None:
    us = BASE_US
    texts = (f"{us}.930", f'"{us}.931"', f"{us}.9325", f"{us}.9335", f"{us}.9335001", f"{us}")
    events = ",\n".join(
        f'{{"ph": "X", "cat": "kernel", "name": "gemm", "ts": {text}, "dur": 1.001}}'
        for text in texts
    )
    found = read_events(io.BytesIO(f'{{"traceEvents": [{events}]}}'.encode()), scanner())
    begins = [begin - us * 1000 for begin in found.kernels.begin_ns]
    assert begins == [930, 931, 932, 934, 934, 0]  # A half is rounded to an even number.
    ends = [
        end - begin for begin, end in zip(found.kernels.begin_ns, found.kernels.end_ns, strict=True)
    ]
    assert ends == [1001] * len(texts)


@pytest.mark.parametrize(
    ("process", "said"),
    [
        (
            "/device:GPU:0 (NVIDIA A100)",
            "it is a profile of XLA (JAX, TensorFlow), whose processes",
        ),
        ("MyServer", "it is not a trace of torch.profiler: its processes are MyServer"),
    ],
)
def test_a_trace_of_another_program_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], process: str, said: str
) -> None:
    named = {"name": "process_name", "ph": "M", "pid": 9, "args": {"name": process}}
    one = {"name": "fusion.1", "ph": "X", "pid": 9, "tid": 1, "ts": 5, "dur": 2}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [named, one]}))
    assert main(["report", str(path)]) != 0
    assert said in capsys.readouterr().err


def test_a_trace_of_torch_without_kineto_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = {"name": "aten::mm", "ph": "X", "pid": "CPU functions", "tid": 1, "ts": 5, "dur": 2}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [one]}))
    assert main(["report", str(path)]) != 0
    assert "it is a trace of torch's profiler without Kineto" in capsys.readouterr().err
