from __future__ import annotations

import functools
import json
import os
import random
import signal
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

THRESHOLD_S = 2.0
STEPS = 60
WORKLOAD = "timed:layers=2,data_ms=4,forward_ms=3,backward_ms=4,gradient_mb=0.02,bucket_cap_mb=0.01"
_START_S = 300.0
_PATIENCE_S = 40.0


@dataclass
class Stopped:
    ranks: int
    rank: int
    #: Time from the stop until the watchdog found the hang; the watchdog's threshold is included.
    #: None if the watchdog reported no hang.
    named_after_s: float | None = None
    stacks_after_s: float | None = None
    hang: dict[str, Any] | None = None
    #: Number of reports before the stop; a busy machine can cause such reports.
    before: int = 0
    stacks: str = ""


def stop_a_rank(directory: Path, seed: int, most_ranks: int = 8, mode: str = "full") -> Stopped:
    from commprof.launch.elastic import launch
    from commprof.monitor.watchdog.start import watched

    draw = random.Random(seed)
    ranks = draw.randint(2, most_ranks)
    tried = Stopped(ranks, draw.randrange(ranks))
    delay_s = draw.uniform(0, 0.6)
    before = os.environ.get("COMMPROF_MODE")
    os.environ["COMMPROF_MODE"] = mode
    job = _job(directory, ranks)
    stopper = threading.Thread(target=_stop, args=(directory, tried, delay_s))
    try:
        with watched(directory, f"{THRESHOLD_S:g}"):
            stopper.start()
            launch(job, directory / "logs")
            stopper.join()
    finally:
        if before is None:
            del os.environ["COMMPROF_MODE"]
        else:
            os.environ["COMMPROF_MODE"] = before
    return tried


@functools.cache
def undisturbed(ranks: int) -> list[tuple[int, list[float], int]]:
    from commprof.launch.elastic import launch

    with tempfile.TemporaryDirectory(prefix="commprof-undisturbed-") as place:
        directory = Path(place)
        launch(_job(directory, ranks), directory / "logs")
        return outcome(directory, ranks)


def outcome(directory: Path, ranks: int) -> list[tuple[int, list[float], int]]:
    results = [json.loads((directory / f"rank_{rank}.json").read_text()) for rank in range(ranks)]
    return [(len(one["step_ns"]), one["losses"], one["weights_crc32"]) for one in results]


def _job(directory: Path, ranks: int) -> Any:
    from commprof.launch.job import Job

    return Job(WORKLOAD, ranks, directory, steps=STEPS, hook=False, overhead_steps=0)


def _stop(directory: Path, tried: Stopped, delay_s: float) -> None:
    from commprof.monitor.watchdog.feed import RankFeed

    end = time.monotonic() + _START_S
    feed = RankFeed(directory / f"rank_{tried.rank}.trace")
    while feed.state is None or feed.state.steps_ended < 3:
        if time.monotonic() > end:
            return
        time.sleep(0.02)
        feed.poll()
    pid = feed.metadata["pid"]
    feed.close()
    time.sleep(delay_s)
    os.kill(pid, signal.SIGSTOP)
    begin = time.monotonic()
    end = begin + _PATIENCE_S
    try:
        while time.monotonic() < end and not tried.stacks_after_s:
            time.sleep(0.02)
            _poll(directory, tried, begin)
    finally:
        os.kill(pid, signal.SIGCONT)


def _poll(directory: Path, tried: Stopped, begin: float) -> None:
    hangs = [json.loads(text) for path in hang_files(directory) if (text := path.read_text())]
    tried.before = sum(one["found_monotonic_ns"] / 1e9 < begin for one in hangs)
    if len(hangs) <= tried.before:
        return
    tried.hang = hangs[tried.before]
    if tried.named_after_s is None:
        tried.named_after_s = tried.hang["found_monotonic_ns"] / 1e9 - begin
    # The watchdog writes the stacks of the stopped rank and, if ranks wait, of one waiting rank.
    wanted = 1 + bool(tried.hang["waiting"])
    if len(tried.hang["stacks"]) >= wanted:
        tried.stacks_after_s = time.monotonic() - begin
        file = next((s["file"] for s in tried.hang["stacks"] if s["rank"] == tried.rank), "")
        tried.stacks = (directory / file).read_text() if file else ""


def hang_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("hang_*.json"), key=lambda path: int(path.stem[5:]))
