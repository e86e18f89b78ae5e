"""Damaged traces beside a job that runs: what watches it says so, and goes on."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import pytest

from commprof.monitor.metrics.metrics import flat, samples
from commprof.monitor.metrics.outputs import exposition
from commprof.monitor.observer import Observer
from commprof.monitor.watchdog.log import Log
from commprof.monitor.watchdog.tasks import AnomalyTask, HangTask, MismatchTask, WatchTask
from commprof.monitor.watchdog.thresholds import Threshold
from commprof.monitor.watchdog.watchdog import Job
from commprof.report.live_frame import frame
from tests.support.builders.hostile import damage, little_memory, sound_run


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = sound_run(tmp_path_factory.mktemp("sound") / "run")
    observer = Observer(run, patience_s=0)
    assert observer.look() is not None  # else nothing would be tried
    observer.close()
    return run


def damaged(sound: Path, run: Path, seed: int) -> Path:
    chance = random.Random(seed)
    shutil.copytree(sound, run)
    print([damage(run, chance, "rank_*.trace") for _ in range(3)])  # of a failing seed
    return run


def watch(run: Path) -> None:
    """What ``commprof top`` and the monitor do."""
    observer = Observer(run, patience_s=0)
    for _ in range(3):
        state = observer.look()
        if state is not None:
            assert "\x1b" not in "".join(frame(state, str(run), 80))
            assert b"\x1b" not in exposition(samples(state))
            flat(state)
    observer.close()


def guard(world: Path) -> None:
    """What the watchdog does."""

    def tasks(place: Path) -> list[WatchTask]:
        log = Log(place, quiet=True)
        return [HangTask(place, Threshold(5.0), log), MismatchTask(log), AnomalyTask(log)]

    job = Job(world, tasks)
    job.search()
    for _ in range(8):
        job.look(time.monotonic_ns())
    job.end()


@pytest.mark.parametrize("seed", range(60))
def test_what_watches_a_job_outlives_damaged_traces(seed: int, sound: Path, tmp_path: Path) -> None:
    run = damaged(sound, tmp_path / "run", seed)
    with little_memory(1 << 30):
        watch(run)
        guard(run / "world_2")
