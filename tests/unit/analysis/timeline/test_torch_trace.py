from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from commprof.analysis.timeline.torch_trace import read_torch_trace
from commprof.commands import main
from commprof.errors import CommprofError
from tests.support.builders.traces import MS, Rank

BASE_NS = 1_700_000_000_000_000_000


def torch_trace(**values: Any) -> dict[str, Any]:
    """The events lie in the middle, as in a file of export_chrome_trace()."""
    events = [
        {"ph": "M", "pid": 7, "tid": 0, "name": "process_name", "args": {"name": "python"}},
        {"ph": "M", "pid": 7, "tid": 0, "name": "process_sort_index", "args": {"sort_index": 7}},
        {"ph": "X", "cat": "cpu_op", "name": "c10d::allreduce_", "pid": 7, "tid": 7,
         "ts": 2000.5, "dur": 10.25, "args": {"External id": 1}},
        {"ph": "s", "id": 5, "pid": 7, "tid": 7, "ts": 2001.0, "cat": "ac2g", "name": "ac2g"},
        {"ph": "X", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler",
         "ts": 500, "dur": 9000},
    ]  # fmt: skip
    return {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "gloo", "rank": 0, "world_size": 1},
        "traceEvents": events,
        "traceName": "x",
        "baseTimeNanoseconds": BASE_NS,
        **values,
    }


def write(path: Path, value: object) -> Path:
    data = json.dumps(value, indent=1).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def run_with(directory: Path, world_size: int = 1) -> Path:
    """The ranks' monotonic clock shows 0 at BASE_NS + 1 ms."""
    for number in range(world_size):
        rank = Rank(number, world_size, pid=7 + number)
        rank.metadata["clock"] = {
            "source": "CLOCK_MONOTONIC", "monotonic_ns": 5 * MS, "realtime_ns": BASE_NS + 6 * MS
        }  # fmt: skip
        rank.collective(0, 1 * MS, 2 * MS, bytes=4)
        rank.step(0, 3 * MS)
        rank.write(directory / f"rank_{number}.trace")
    return directory


def run_of_two_hosts(directory: Path, gained_ns_per_s: int) -> Path:
    """``gained_ns_per_s`` is what rank 0's clock gains on rank 1's clock."""
    for number in range(2):
        rank = Rank(number, 2, pid=7 + number, boot_id=f"host {number}")
        rank.metadata["clock"] = {
            "source": "CLOCK_MONOTONIC", "monotonic_ns": 5 * MS, "realtime_ns": BASE_NS + 6 * MS
        }  # fmt: skip
        rank.collective(0, 1 * MS, 2 * MS, bytes=4)
        rank.step(0, 3 * MS)
        for second in range(3):
            if number == 1:
                rank.clock(second * 1000 * MS, second * gained_ns_per_s, 5)
        rank.write(directory / f"rank_{number}.trace")
    return directory


def merged(run: Path, *traces: Path) -> list[dict[str, Any]]:
    output = run / "out.json"
    assert main(["trace", str(run), "-o", str(output), "--merge", *map(str, traces)]) == 0
    return [e for e in events_of(run) if e["pid"] >= 1_000_000]


def events_of(run: Path) -> list[dict[str, Any]]:
    return list(json.loads((run / "out.json").read_text())["traceEvents"])


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_torch_trace_events_are_read_unchanged(name: str, tmp_path: Path) -> None:
    trace = read_torch_trace(write(tmp_path / name, torch_trace()))
    assert (trace.base_ns, trace.rank, trace.pids) == (BASE_NS, 0, {7})
    assert trace.first_us == 500
    assert list(trace.events()) == torch_trace()["traceEvents"]


def test_a_torch_trace_without_events_is_read_as_empty(tmp_path: Path) -> None:
    trace = read_torch_trace(write(tmp_path / "t.json", torch_trace(traceEvents=[])))
    assert list(trace.events()) == []
    assert trace.base_ns == BASE_NS


def test_merged_torch_events_are_moved_to_the_run_s_clock(tmp_path: Path) -> None:
    events = merged(run_with(tmp_path), write(tmp_path / "t.json", torch_trace()))
    (op,) = [e for e in events if e["name"] == "c10d::allreduce_"]
    # The first event, at 0.5 ms, becomes 0. The ranks' clock shows 0 at 1 ms, so the step begins at
    # 500 us.
    assert op["ts"] == pytest.approx(1500.5)
    (step,) = [e for e in events_of(tmp_path) if e.get("cat") == "steps (declared)"]
    assert step["ts"] == pytest.approx(500)
    assert (op["dur"], op["tid"], op["args"]) == (10.25, 7, {"External id": 1})
    (arrow,) = [e for e in events if e["ph"] == "s"]
    assert arrow["id"] >= 2**40
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert names == ["rank 0, torch.profiler: python"]
    order = [e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"]
    assert order == [1]
    assert len({e["pid"] for e in events}) == 2


@pytest.mark.parametrize("gained_ns_per_s", [50_000, -50_000])
def test_torch_events_of_another_host_still_touch_and_nest_on_the_common_clock(
    tmp_path: Path, gained_ns_per_s: int
) -> None:
    """Perfetto drops an event that outlasts its parent by 1 ns, or that overlaps the last event."""
    trace = torch_trace(distributedInfo={"rank": 1}, traceEvents=[])
    for number in range(100):
        begin_us = round(2000 + number * 1000.137, 3)
        for name, begin, length in (("outer", 0, 1000.137), ("inner", 400.011, 600.126)):
            event = {"ph": "X", "name": name, "pid": 8, "tid": 8}
            event |= {"ts": round(begin_us + begin, 3), "dur": length}
            trace["traceEvents"].append(event)
    path = write(tmp_path / "t.json", trace)
    events = merged(run_of_two_hosts(tmp_path, gained_ns_per_s), path)
    begins = {
        name: [1000 * e["ts"] for e in events if e["name"] == name] for name in ("outer", "inner")
    }
    ends = {
        name: [round(1000 * (e["ts"] + e["dur"])) for e in events if e["name"] == name]
        for name in ("outer", "inner")
    }
    assert len(ends["outer"]) == 100
    assert ends["inner"] == ends["outer"]
    assert ends["outer"][:-1] == [round(begin) for begin in begins["outer"][1:]]
    gained_ns = ends["outer"][-1] - begins["outer"][0] - 100 * 1_000_137
    assert gained_ns == pytest.approx(0.1 * gained_ns_per_s, rel=1e-3)


def test_a_torch_event_that_began_before_the_selected_steps_is_cut_at_their_begin(
    tmp_path: Path,
) -> None:
    """The run's only step begins 1 ms after ``baseTimeNanoseconds``."""
    trace = torch_trace()
    for begin_us, length in ((900, 50), (900, 300), (950, "long"), (1200, 4000)):
        event = {"ph": "X", "name": "op", "pid": 7, "tid": 7, "ts": begin_us, "dur": length}
        trace["traceEvents"].append(event)
    output = run_with(tmp_path) / "out.json"
    path = write(tmp_path / "t.json", trace)
    assert (
        main(["trace", str(tmp_path), "-o", str(output), "--steps", "0", "--merge", str(path)]) == 0
    )
    shown = [(e["ts"], e["dur"]) for e in events_of(tmp_path) if e["name"] == "op"]
    assert shown == [(0, 200), (200, 4000)]


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"distributedInfo": {"rank": 1}}, "t.json"),
        ({"distributedInfo": None, "traceEvents": [{"ph": "X", "pid": 8, "ts": 0}]}, "t.json"),
        ({"distributedInfo": None, "traceEvents": [{"ph": "X", "pid": 99, "ts": 0}]}, "rank1.json"),
    ],
)
def test_the_rank_of_a_torch_trace_is_found_by_info_process_or_file_name(
    values: dict[str, Any], name: str, tmp_path: Path
) -> None:
    trace = torch_trace(**values)
    trace["traceEvents"].append(
        {"ph": "M", "pid": 99, "tid": 0, "name": "process_name", "args": {"name": "p"}}
    )
    events = merged(run_with(tmp_path, world_size=2), write(tmp_path / name, trace))
    assert "rank 1, torch.profiler: p" in [
        e["args"]["name"] for e in events if "args" in e and "name" in e["args"]
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "traceEvents"),
        (b"[1, 2]", "traceEvents"),
        (b'{"traceEvents": []}', "baseTimeNanoseconds"),
        (b'{"traceEvents": [{"ph": "X"', "cannot be read as JSON"),
        (b'{"traceEvents": [' + b"[" * 100_000, "cannot be read as JSON"),
        (b"\x1f\x8bxx", "cannot be read"),
        (b"\xff\xfe\xff", "cannot be read"),
    ],
)
def test_files_that_are_no_torch_traces_are_refused(
    content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(CommprofError, match=message):
        read_torch_trace(path)


def test_a_torch_trace_of_a_rank_outside_the_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write(tmp_path / "t.json", torch_trace(distributedInfo={"rank": 5}))
    output = tmp_path / "out.json"
    command = ["trace", str(run_with(tmp_path)), "-o", str(output), "--merge", str(trace)]
    assert main(command) == 1
    assert "does not belong to a rank of this run: it names rank 5" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize("time_us", ['"soon"', "[1]", "NaN", "1e300", "Infinity"])
def test_an_invalid_event_time_is_refused_with_the_event_s_number(
    tmp_path: Path, time_us: str
) -> None:
    path = tmp_path / "trace.json"
    events = f'[{{"ph": "X", "ts": 1.5}}, {{"ph": "X", "ts": {time_us}}}]'
    path.write_text(f'{{"baseTimeNanoseconds": 1, "traceEvents": {events}}}')
    with pytest.raises(CommprofError, match="event 2: ts is not a"):
        read_torch_trace(path)
