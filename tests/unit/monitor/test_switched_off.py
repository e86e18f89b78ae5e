from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path

import pytest

from commprof.capture.python_recorder import PythonRecorder
from commprof.monitor.follow import TraceTail
from commprof.monitor.observer import Observer
from commprof.monitor.watchdog import py_spy
from commprof.monitor.watchdog.feed import RankFeed
from commprof.monitor.watchdog.tasks import HangTask, Log
from commprof.monitor.watchdog.thresholds import Threshold
from commprof.trace.run.processes import Here
from commprof.trace.schema import BlockType, Phase
from tests.support.builders import trace_bytes
from tests.support.builders.traces import MS, GrowingRun, Rank, summary

SECOND = 1_000 * MS
STEP = 100 * MS
#: The ranks record 20 steps, and 20 more steps a minute later.
STEPS = 20
LATER = 60 * SECOND


class Job:
    def __init__(self, directory: Path, begin_ns: int) -> None:
        self.begin_ns = begin_ns
        self.directory = directory
        self.run = GrowingRun(directory, [self._rank(number) for number in range(2)])
        self.run.begin()
        self.feeds = [RankFeed(path) for path in self.run.paths.values()]
        self.task = HangTask(directory, Threshold(5.0), Log(directory, quiet=True))

    def _rank(self, number: int) -> Rank:
        here = Here()
        # The trace must begin after this process did, or the process ID would count as reused.
        clock = {"source": "x", "monotonic_ns": time.monotonic_ns(), "realtime_ns": 0}
        rank = Rank(number, 2, pid=os.getpid(), clock=clock, ring_prefix="")
        rank.metadata["machine"].update(
            boot_id=here._boot_id, pid_namespace=here._pids, time_namespace=here._times
        )
        for first_seq, begin_ns in ((0, self.begin_ns), (500, self.begin_ns + LATER)):
            for step in range(STEPS):
                at_ns = begin_ns + step * STEP
                rank.step(at_ns, at_ns + STEP)
                rank.phase(Phase.OPTIMIZER, at_ns + 80 * MS, at_ns + 99 * MS)
                rank.collective(first_seq + step, at_ns + 10 * MS, at_ns + 20 * MS, bytes=100)
        rank.collective(STEPS, self.begin_ns + STEPS * STEP + 10 * MS, 0, bytes=100)
        if number == 0:
            rank.collective(500 + STEPS, self.begin_ns + LATER + STEPS * STEP + 10 * MS, 0)
        return rank

    def switch(self, on: bool, at_ns: int, *ranks: int) -> None:
        state = {"capture_state": {"recording": on, "monotonic_ns": self.begin_ns + at_ns}}
        self.append(trace_bytes.document(trace_bytes.METADATA_BLOCK, state), *ranks)

    def append(self, data: bytes, *ranks: int) -> None:
        for number in ranks or self.run.paths:
            with self.run.paths[number].open("ab") as file:
                file.write(data)

    def hang(self, at_ns: int) -> str:
        for feed in self.feeds:
            feed.poll()
        self.task.poll(self.feeds, self.begin_ns + at_ns)
        files = sorted(self.directory.glob("hang_*.json"))
        return str(json.loads(files[-1].read_text())["sentence"]) if files else ""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(py_spy, "find_py_spy", lambda: None)
    return Job(tmp_path, time.monotonic_ns() - 100 * SECOND)


def test_a_job_with_recording_switched_off_is_no_hang(job: Job) -> None:
    job.run.until(job.begin_ns + 50 * SECOND)
    assert not job.hang(3 * SECOND)
    job.switch(False, 3 * SECOND)
    assert not job.hang(50 * SECOND)
    job.switch(True, 59 * SECOND)
    assert not job.hang(60 * SECOND)
    job.run.until(job.begin_ns + 100 * SECOND)
    assert not job.hang(63 * SECOND)
    assert [feed.state.step for feed in job.feeds if feed.state is not None] == [2 * STEPS] * 2
    assert "rank 1 did not arrive at all_reduce number 520" in job.hang(68 * SECOND)


def test_a_job_without_new_records_is_a_hang_unless_switched_off(job: Job) -> None:
    job.run.until(job.begin_ns + 50 * SECOND)
    assert job.hang(50 * SECOND)


def test_a_summary_of_mode_off_prevents_a_hang_report(job: Job) -> None:
    job.run.until(job.begin_ns + 50 * SECOND)
    off = json.dumps(summary(mode="off", sequence=1)).encode()
    job.append(trace_bytes.block(BlockType.SUMMARY, off))
    assert not job.hang(50 * SECOND)
    full = json.dumps(summary(mode="full", sequence=2)).encode()
    job.append(trace_bytes.block(BlockType.SUMMARY, full))
    assert not job.hang(60 * SECOND)
    job.run.until(job.begin_ns + 100 * SECOND)
    assert job.hang(68 * SECOND)


def test_a_single_switched_off_rank_is_not_accused(job: Job) -> None:
    job.run.until(job.begin_ns + 50 * SECOND, 1)
    job.switch(False, 3 * SECOND, 1)
    job.run.until(job.begin_ns + 100 * SECOND, 0)
    sentence = job.hang(68 * SECOND)
    assert "all ranks visible from this host arrived" in sentence
    assert "the records of rank 1 are not visible" in sentence


def test_time_since_a_step_counts_only_while_recording_is_on(job: Job) -> None:
    job.run.until(job.begin_ns + 50 * SECOND)

    def since() -> list[float]:
        observer = Observer(job.directory)
        state = observer.poll()
        observer.close()
        assert state is not None
        return [rank.since_step_s for rank in state.ranks]

    assert since() == pytest.approx([98, 98], abs=2)
    job.switch(False, 3 * SECOND)
    assert all(map(math.isnan, since()))
    job.switch(True, 90 * SECOND)
    assert since() == pytest.approx([10, 10], abs=2)


def test_the_python_capture_tells_that_recording_is_off_for_half_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = 1 * SECOND
    monkeypatch.setattr(PythonRecorder, "now_ns", staticmethod(lambda: now_ns))
    recorder, path = PythonRecorder(), tmp_path / "rank_0.trace"
    hour_ms = 3_600_000
    recorder.start(str(path), "", json.dumps(trace_bytes.metadata()), 1, flush_interval_ms=hour_ms)
    told: list[object] = []
    with TraceTail(path) as tail:
        for on, at_ns in ((True, 2), (False, 3), (True, 3.4), (False, 4), (False, 4.6), (True, 5)):
            recorder.set_enabled(on)
            now_ns = int(at_ns * SECOND)
            recorder.flush()
            tail.poll()
            told.append((tail.metadata or {}).get("capture_state"))
        recorder.stop()
    off = {"recording": False, "monotonic_ns": 4 * SECOND}
    on_again = {"recording": True, "monotonic_ns": 5 * SECOND}
    assert told == [None, None, None, None, off, on_again]
