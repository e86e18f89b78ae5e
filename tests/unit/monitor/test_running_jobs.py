from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from commprof.monitor.observer import Observer, rank_process
from commprof.monitor.watchdog import py_spy
from commprof.monitor.watchdog.tasks import HangTask, Log
from commprof.monitor.watchdog.thresholds import Threshold
from commprof.monitor.watchdog.watchdog import WatchedJob
from commprof.trace.run.processes import Here
from tests.support.builders.run_directories import ranks_of
from tests.support.builders.trace_bytes import metadata
from tests.support.builders.traces import GrowingRun


def of_this_host(pid: int, began_ns: int) -> dict[str, Any]:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = {f"{name}_namespace": os.readlink(f"/proc/self/ns/{name}") for name in ("pid", "time")}
    machine = {**metadata()["machine"], "boot_id": boot_id, **spaces}
    return {
        "pid": pid,
        "machine": machine,
        "clock": {**metadata()["clock"], "monotonic_ns": began_ns},
    }


def test_a_running_process_is_distinguished_from_one_that_reuses_its_pid() -> None:
    mine = metadata(**of_this_host(os.getpid(), time.monotonic_ns()))
    here = Here()
    process, lives = rank_process(here, mine)
    assert lives is True
    assert process is not None
    assert process.cpu_s > 0
    assert process.resident_bytes > 1_000_000
    old = of_this_host(os.getpid(), 1)  # The trace began before this process.
    assert rank_process(here, {**mine, **old}) == (None, False)
    assert rank_process(here, {**mine, "pid": 2**22 + 1}) == (None, False)
    assert rank_process(here, metadata()) == (None, None)


def write_job(directory: Path, world_size: int, age_s: float, **changes: Any) -> None:
    ranks = ranks_of(world_size, 12)
    for rank in ranks:
        rank.metadata.update(changes)
    run = GrowingRun(directory, ranks)
    run.begin()
    run.until(2**62)
    for path in run.paths.values():
        os.utime(path, (time.time() - age_s,) * 2)


def size_of_followed(observer: Observer) -> int:
    state = observer.poll()
    assert state is not None
    return state.world_size


def test_a_job_is_followed_while_one_of_its_ranks_runs(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "60"])
    observer = Observer(tmp_path, patience_s=0)
    try:
        write_job(tmp_path, 1, 3600, **of_this_host(process.pid, time.monotonic_ns()))
        assert size_of_followed(observer) == 1
        write_job(tmp_path / "job_2", 2, 0)
        assert size_of_followed(observer) == 1
    finally:
        process.kill()
        process.wait()
    assert size_of_followed(observer) == 2
    observer.close()


def test_a_job_of_another_host_is_followed_while_it_writes(tmp_path: Path) -> None:
    observer = Observer(tmp_path, patience_s=0)
    write_job(tmp_path, 1, 5)
    assert size_of_followed(observer) == 1
    write_job(tmp_path / "job_2", 2, 1)
    assert size_of_followed(observer) == 1
    write_job(tmp_path, 1, 11)
    assert size_of_followed(observer) == 2
    write_job(tmp_path, 1, 0)
    assert size_of_followed(observer) == 2
    observer.close()


@pytest.mark.parametrize("reused", [True, False])
def test_a_job_that_died_before_the_watchdog_started_is_no_hang(
    reused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reused process ID means that the rank has died."""
    monkeypatch.setattr(py_spy, "find_py_spy", lambda: None)
    began_ns = 1 if reused else time.monotonic_ns()
    write_job(tmp_path, 1, 0, **of_this_host(os.getpid(), began_ns))
    job = WatchedJob(
        tmp_path, lambda place: [HangTask(place, Threshold(5.0), Log(place, quiet=True))]
    )
    job.search()
    job.poll(time.monotonic_ns())
    job.end()
    assert (tmp_path / "hang_1.json").exists() is not reused
