from __future__ import annotations

import json
from pathlib import Path

import pytest

from commprof.commands import main
from commprof.recordings import profiler
from commprof.recordings.profiler import read_recording
from tests.support.builders.profiler_traces import Event, both, document, kernel, rank_events

SAID = "it holds the events of 2 processes: some tool has merged the traces of several ranks"


def of_process(rank: int, process: object) -> list[Event]:
    events = rank_events(rank)
    for event in events:
        if event["cat"] == "user_annotation":
            event["pid"] = process
    return events


@pytest.mark.parametrize("processes", [(71, 72), ("[TP00] 71", "[TP01] 71")])
@pytest.mark.parametrize("python_alone", [False, True])
def test_merged_traces_are_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    processes: tuple[object, object],
    python_alone: bool,
) -> None:
    if python_alone:
        monkeypatch.setattr(profiler, "trace_scanner", lambda: None)
    events = [event for rank in (0, 1) for event in of_process(rank, processes[rank])]
    path = tmp_path / "merged.json"
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}))
    assert main(["report", str(path)]) != 0
    text = capsys.readouterr().err
    assert SAID in text
    assert "give the original traces, one per rank, in one folder" in text


def test_one_process_that_is_numbered_in_two_ways_is_one(tmp_path: Path) -> None:
    events = [*of_process(0, 71), *of_process(0, "71")]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}))
    assert read_recording(path) is not None


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_job_of_one_rank_is_said_to_be_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], world_size: int
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(document([kernel("gemm", 0, 100)], 0, world_size))
    assert main(["report", str(path)]) != 0
    text = capsys.readouterr().err
    assert "no kernel of NCCL, RCCL, oneCCL or HCCL" in text
    assert ("its job had one rank, which has nobody to wait for" in text) == (world_size == 1)


def test_a_merged_trace_beside_its_ranks_is_left_out(tmp_path: Path) -> None:
    folder = both(tmp_path / "traces")
    events = [event for rank in (0, 1) for event in of_process(rank, 71 + rank)]
    (folder / "merged.json").write_text(json.dumps({"traceEvents": events}))
    recording = read_recording(folder)
    assert recording is not None
    assert sorted(recording.traces) == [0, 1]
    assert any(SAID in problem for problem in recording.problems)
