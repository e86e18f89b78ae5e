from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commprof.monitor.watchdog import py_spy
from commprof.monitor.watchdog.hang import DEAD, HungProcess
from commprof.monitor.watchdog.tasks import Log, SampleTask

WRITES = 'trap "" INT\nfor last; do :; done\necho "$@" > "$last"\n'
IS_REFUSED = 'trap "" INT\necho "Error: Permission Denied: try sudo" >&2\nexit 1\n'


def feed(rank: int, step: int = 3, state: str = "running", attempt: int = 0) -> Any:
    process = HungProcess(100 + rank, state, "")
    return SimpleNamespace(
        state=SimpleNamespace(rank=rank, step=step), process=process, attempt=attempt
    )


def sample(place: Path, monkeypatch: pytest.MonkeyPatch, does: str, *looks: list[Any]) -> str:
    program = place / "py-spy"
    program.write_text(f"#!/bin/sh\n{does}")
    program.chmod(0o755)
    monkeypatch.setattr(py_spy, "find_py_spy", lambda: str(program))
    task = SampleTask(place, Log(place, quiet=True))
    for feeds in looks:
        task.poll(feeds, 0)
    for sampler in task._samplers.values():
        sampler._process.wait()
    task.finish()
    return "".join(path.read_text() for path in place.glob("watchdog_*.log"))


def test_each_rank_is_sampled_once_from_its_first_step_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = SimpleNamespace(state=SimpleNamespace(rank=3, step=3), process=None, attempt=0)
    early = [feed(0, step=-1), feed(1, attempt=2), feed(2, state=DEAD), elsewhere]
    log = sample(tmp_path, monkeypatch, WRITES, early, [feed(0, step=0), feed(1)])
    assert log == ""
    written = {path.name: path.read_text() for path in tmp_path.glob("*.txt")}
    assert sorted(written) == ["rank_0.samples.txt", "rank_1.attempt_2.samples.txt"]
    for rank, name in enumerate(sorted(written)):
        assert written[name].split() == [
            *("record", "--threads", "--idle", "--nonblocking", "--format", "raw"),
            *("--rate", "100", "--pid", str(100 + rank), "--output", str(tmp_path / name)),
        ]


def test_the_log_says_once_that_py_spy_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(py_spy, "find_py_spy", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    task = SampleTask(tmp_path, Log(tmp_path, quiet=True))
    for _ in range(3):
        task.poll([feed(0)], 0)
    task.finish()
    (log,) = tmp_path.glob("watchdog_*.log")
    (line,) = log.read_text().splitlines()
    assert line.endswith(f"no samples of rank 0: {py_spy.MISSING}")


def test_the_log_gives_the_reason_for_missing_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = sample(tmp_path, monkeypatch, IS_REFUSED, [feed(0)])
    assert "no samples of rank 0: reading process 100 is not allowed (ptrace): " in log
