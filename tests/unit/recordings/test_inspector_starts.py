from __future__ import annotations

import re
from pathlib import Path

import pytest

from commprof.analysis.inspector.live import LiveLogs
from commprof.analysis.inspector.result import InspectorResult, inspector_result
from tests.support.builders.inspector_logs import SimulatedJob, simulate

#: Two starts lie further apart than the clocks of two hosts can differ.
_LATER_US = 100_000_000_000
_RANKS = 8


def _start(late: int, steps: int) -> SimulatedJob:
    """Jobs of the same seed have the same communicators."""
    return simulate(2, 4, 1, steps=steps, late_us={late: 2500.0}, seed=4)


def _write(job: SimulatedJob, folder: Path, scratch: Path, number: int) -> None:
    job.write(scratch, "v4.0")
    folder.mkdir(exist_ok=True)
    for file in scratch.iterdir():
        rank = int(file.name[-5]) % _RANKS
        pid = 1000 * number + (rank if number % 2 else 900 + _RANKS - 1 - rank)
        if number == 2 and rank % 2:
            pid = 10 + rank
        text = re.sub(r'"pid": \d+', f'"pid": {pid}', file.read_text())
        text = re.sub(
            r'"dump_timestamp_us": (\d+)',
            lambda match: f'"dump_timestamp_us": {int(match[1]) + number * _LATER_US}',
            text,
        )
        (folder / f"host000-pid{pid}.log").write_text(text)
        file.unlink()


def _figures(result: InspectorResult) -> list[tuple[int, float, float]]:
    return [(row.calls, round(row.time_s, 9), round(row.wait_s, 9)) for row in result.communicators]


def test_each_start_counts_as_communicators_of_its_own(tmp_path: Path) -> None:
    starts = {1: _start(late=3, steps=60), 2: _start(late=4, steps=150)}
    for number, job in starts.items():
        _write(job, tmp_path / str(number), tmp_path / "scratch", number)
        _write(job, tmp_path / "both", tmp_path / "scratch", number)
    alone = [inspector_result(tmp_path / str(number)) for number in starts]
    assert [[row.process.pid for row in result.late] for result in alone] == [[1003], [2903]]
    both = inspector_result(tmp_path / "both")
    assert sorted(_figures(both)) == sorted(_figures(alone[0]) + _figures(alone[1]))
    assert {row.process.pid for row in both.late} == {1003, 2903}
    ids = {row.id for row in alone[0].communicators}
    assert {row.id for row in both.communicators} == ids | {f"{one} of start 2" for one in ids}
    (caveat,) = (text for text in both.caveats if "made again" in text)
    assert caveat.startswith("6 communicators were made again by other processes")
    assert "had 2 processes): a job was probably started again with the same NCCL_COMM_ID" in caveat
    assert sum("2 sets that share no communicator" in text for text in both.caveats) == 1


@pytest.mark.parametrize("start", [1, 2, 3])
def test_a_rank_without_a_log_in_one_start_is_missing_in_that_start(
    tmp_path: Path, start: int
) -> None:
    for number in (1, 2, 3):
        _write(_start(late=3, steps=60), tmp_path / "all", tmp_path / "scratch", number)
    (lost,) = (
        file
        for file in (tmp_path / "all").iterdir()
        if f'"pid": {({1: 1002, 2: 2905, 3: 3002})[start]}' in file.read_text()
    )
    lost.unlink()
    result = inspector_result(tmp_path / "all")
    lacking = [row.id for row in result.communicators if row.recorded_ranks < row.ranks]
    assert len(lacking) == 2
    assert len(result.communicators) == 18
    ends = {1: "", 2: " of start 2", 3: " of start 3"}
    assert {"".join(one.partition(" of")[1:]) for one in lacking} == {ends[start]}


def test_a_second_start_is_followed_apart_from_the_first(tmp_path: Path) -> None:
    folder, calls = tmp_path / "both", 0
    live = None
    for number, steps in ((1, 30), (2, 50)):
        job = _start(late=3, steps=steps)
        _write(job, folder, tmp_path / "scratch", number)
        calls += sum(row.calls for row in _alone(job, tmp_path / f"alone{number}").communicators)
        live = live or LiveLogs(folder)
        for _ in range(3):
            state = live.look()
    assert state is not None
    assert state.calls == calls
    assert len(state.processes) == 2 * _RANKS
    assert state.lost_records == 0
    assert any("made again" in problem for problem in state.problems)


def _alone(job: SimulatedJob, folder: Path) -> InspectorResult:
    job.write(folder)
    return inspector_result(folder)
