from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commprof.analysis.run import analyse_in_detail
from commprof.commands import main
from commprof.recordings.profiler import read_recording
from tests.support.builders.profiler_traces import Event, annotation, kernel

NO_SIZE = "no file says how many ranks the job has"


def reduced(begin_us: float, end_us: float, **args: object) -> Event:
    size = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1_000_000}
    return kernel("ncclKernel_AllReduce_RING_LL_Sum_float", begin_us, end_us, 20, **size, **args)


def on_device(**args: object) -> list[Event]:
    events = []
    for step in range(4):
        base = 5e9 + 1000.0 * step
        events += [
            annotation(f"ProfilerStep#{step}", base, base + 1000),
            kernel("gemm", base, base + 300),
            reduced(base + 300, base + 800, **args),
        ]
    return events


def on_host() -> list[Event]:
    events = []
    for step in range(4):
        base = 5e9 + 1000.0 * step
        shapes = {"Input Dims": [[1_000_000]], "Input type": ["float"]}
        issue = {"ph": "X", "cat": "cpu_op", "name": "c10d::allreduce_", "pid": 1, "tid": 1}
        work = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1}
        transfer = annotation("gloo:all_reduce", base + 305, base + 800, tid=2)
        events += [
            annotation(f"ProfilerStep#{step}", base, base + 1000),
            {**work, "ts": base, "dur": 300.0},
            {**issue, "ts": base + 300, "dur": 4.0, "args": shapes},
            {**transfer, "args": shapes},
        ]
    return events


def written(path: Path, events: list[Event], about: dict[str, Any] | None) -> Path:
    told = {} if about is None else {"distributedInfo": about}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"schemaVersion": 1, **told, "traceEvents": events}))
    return path


@pytest.mark.parametrize("events", [on_device(), on_host()], ids=["device", "host"])
@pytest.mark.parametrize("about", [None, {"rank": 0}, {"backend": "x", "rank": 3}], ids=repr)
def test_one_trace_of_a_job_of_unknown_size_tells_no_waiting(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    events: list[Event],
    about: dict[str, Any] | None,
) -> None:
    path = written(tmp_path / "trace.json", events, about)
    recording = read_recording(path)
    assert recording is not None
    assert any(text.startswith(NO_SIZE) for text in recording.problems)
    (world,) = analyse_in_detail(path)[0].worlds
    assert world.parts.exposed_ms == pytest.approx(0.5, abs=0.01)
    assert world.parts.wait_ms != world.parts.wait_ms
    (row,) = world.communication.collectives
    assert (row.kind.size_bytes, row.kind.group_size) == ((4_000_000, 4_000_000), 0)
    assert main(["report", str(path), "--all"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "At an unknown number of ranks (1 recorded) the step is bound by" in text
    assert "0 ms waiting for others" not in text
    assert "There is only one rank" not in text


@pytest.mark.parametrize("about", [None, {"rank": 0, "world_size": 1}], ids=["unknown", "one"])
def test_hidden_communication_is_nothing_to_communicate_only_of_one_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], about: dict[str, Any] | None
) -> None:
    during = [kernel("gemm", 5e9 + 1000.0 * step, 5e9 + 1000.0 * step + 900) for step in range(4)]
    path = written(tmp_path / "trace.json", [*on_device(), *during], about)
    assert main(["report", str(path), "--all"]) == 0
    is_alone = "There is only one rank, so there is nothing to communicate" in (
        " ".join(capsys.readouterr().out.split())
    )
    assert is_alone == (about is not None)


@pytest.mark.parametrize(
    ("about", "args"),
    [({"rank": 0, "world_size": 1}, {}), (None, {"Group size": 1})],
    ids=["world_size", "group"],
)
def test_a_job_that_is_said_to_have_one_rank_has_one(
    tmp_path: Path, about: dict[str, Any] | None, args: dict[str, object]
) -> None:
    path = written(tmp_path / "trace.json", on_device(**args), about)
    (world,) = analyse_in_detail(path)[0].worlds
    assert world.parts.wait_ms == 0
    assert world.evidence.recorded.job_size


def test_traces_of_ranks_from_0_on_count_as_all_ranks_and_it_is_said(tmp_path: Path) -> None:
    for rank in (0, 1):
        written(tmp_path / "job" / f"rank{rank}.json", on_device(), {"rank": rank})
    recording = read_recording(tmp_path / "job")
    assert recording is not None
    assert recording.world_size == 2
    assert any(
        text == f"{NO_SIZE}: the recorded ranks count as all ranks" for text in recording.problems
    )


def test_with_a_rank_between_them_missing_no_waiting_is_told(tmp_path: Path) -> None:
    for rank in (0, 2):
        written(tmp_path / "job" / f"rank{rank}.json", on_device(), {"rank": rank})
    (world,) = analyse_in_detail(tmp_path / "job")[0].worlds
    assert world.parts.wait_ms != world.parts.wait_ms
    assert not world.evidence.recorded.job_size


def test_the_highest_rank_of_a_group_is_a_rank_of_the_job(tmp_path: Path) -> None:
    group = {"Group size": 2, "Process Group Ranks": "[0, 5]"}
    path = written(tmp_path / "trace.json", on_device(**group), {"rank": 0})
    recording = read_recording(path)
    assert recording is not None
    assert recording.world_size == 6


def test_a_number_that_is_too_large_for_a_rank_is_none_of_the_job(tmp_path: Path) -> None:
    group = {"Group size": 2, "Process Group Ranks": "[0, 5000000000]"}
    path = written(tmp_path / "trace.json", on_device(**group), {"rank": 0})
    (world,) = analyse_in_detail(path)[0].worlds
    assert world.world_size == 2


def test_one_trace_of_a_job_of_200_000_ranks_is_reported(tmp_path: Path) -> None:
    about = {"rank": 7, "world_size": 200_000}
    path = written(tmp_path / "trace.json", on_device(), about)
    (world,) = analyse_in_detail(path)[0].worlds
    assert world.parts.exposed_ms == pytest.approx(0.5, abs=0.01)
    assert world.lateness.late_rank is None
    assert len(world.recording.missing_ranks) == 199_999
