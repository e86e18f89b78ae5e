"""The watchdog's loop: finds the ranks that record into a directory and examines them regularly."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from commprof.errors import UsageError
from commprof.monitor.watchdog.feed import RankFeed
from commprof.monitor.watchdog.tasks import (
    AnomalyTask,
    HangTask,
    Log,
    MismatchTask,
    SampleTask,
    WatchTask,
)
from commprof.monitor.watchdog.thresholds import Threshold
from commprof.trace.run.endings import rank_and_attempt
from commprof.trace.run.processes import identity

LOOK_S = 0.5
#: New traces are searched for once in this many looks.
_SEARCH_EVERY = 4
#: A watchdog without a launcher ends after this many seconds if it has found no rank of this host.
_PATIENCE_S = 600.0
#: Seconds for which a watchdog without a launcher continues after the last rank's end. The time is
#: short, because readers of the ranks' output wait until the watchdog has ended too.
_GRACE_S = 0.6


class WatchedJob:
    """The ranks whose traces are in one directory."""

    def __init__(self, directory: Path, tasks: Callable[[Path], list[WatchTask]]) -> None:
        """Makes the tasks by calling ``tasks``, which is called again after an elastic restart."""
        self.directory = directory
        self._make = tasks
        self._tasks = tasks(directory)
        self._attempt = 0
        self._feeds: dict[Path, RankFeed] = {}
        self._passed: set[Path] = set()

    @property
    def alive(self) -> bool:
        """True if a rank of this host may record more."""
        return any(feed.process is not None and not feed.over for feed in self._feeds.values())

    @property
    def was_here(self) -> bool:
        """True if a rank of this host was found."""
        return any(feed.process is not None for feed in self._feeds.values())

    def search(self) -> None:
        """Opens new traces."""
        for path in sorted(self.directory.glob("rank_*.trace")):
            is_known = path in self._feeds or path in self._passed
            if not is_known and rank_and_attempt(path) is not None:
                self._feeds[path] = RankFeed(path)

    def poll(self, now_ns: int) -> None:
        """Reads all ranks' new records and runs the tasks."""
        for feed in self._feeds.values():
            feed.poll()
        newest = max((feed.attempt for feed in self._feeds.values()), default=0)
        if newest > self._attempt:
            self._restart(newest)
        current = [feed for feed in self._feeds.values() if feed.state is not None]
        for task in self._tasks:
            task.poll(current, now_ns)

    def end(self) -> None:
        """Finishes the tasks and closes all traces."""
        self._finish()
        for feed in self._feeds.values():
            feed.close()

    def _restart(self, attempt: int) -> None:
        """Drops the ranks of earlier attempts. An elastic restart starts all ranks again."""
        self._attempt = attempt
        for path, feed in list(self._feeds.items()):
            if feed.metadata and feed.attempt < attempt:
                feed.close()
                self._passed.add(path)
                del self._feeds[path]
        self._finish()
        self._tasks = self._make(self.directory)

    def _finish(self) -> None:
        for task in self._tasks:
            task.finish()


def watch(
    directory: Path,
    threshold_s: float | None,
    *,
    parent: int | None,
    quiet: bool = False,
    tells: bool = True,
    samples: bool = False,
) -> None:
    """Watches the jobs that record into a directory until all jobs are over.

    Args:
        directory: directory of traces. It need not exist yet. Its subdirectories ``job_N`` are
            watched too.
        threshold_s: the hang threshold; None to learn it from the run.
        parent: process id of the launcher; None if there is no launcher. Watching continues while
            the launcher runs.
        quiet: True to write nothing to stderr.
        tells: True to report hangs, mismatched collectives and lasting changes of speed.
        samples: True to sample the ranks' stacks with py-spy.

    Raises:
        UsageError: no process has the id ``parent``.
    """
    launcher = _Launcher(parent) if parent is not None else None

    def tasks(place: Path) -> list[WatchTask]:
        log = Log(place, quiet)
        differing = MismatchTask(log)
        hangs = HangTask(place, Threshold(threshold_s), log, differing.known)
        telling = differing, hangs, AnomalyTask(log)
        return [*(telling if tells else ()), *([SampleTask(place, log)] if samples else [])]

    jobs: dict[Path, WatchedJob] = {}
    last_alive = time.monotonic()
    turn = 0
    try:
        while launcher is None or launcher.lives or any(job.alive for job in jobs.values()):
            if turn % _SEARCH_EVERY == 0:
                _search(directory, jobs, tasks)
            turn += 1
            for job in jobs.values():
                job.poll(time.monotonic_ns())
            now = time.monotonic()
            if any(job.alive for job in jobs.values()):
                last_alive = now
            seen = any(job.was_here for job in jobs.values())
            if launcher is None and now - last_alive > (_GRACE_S if seen else _PATIENCE_S):
                return
            time.sleep(LOOK_S)
    finally:
        for job in jobs.values():
            job.poll(time.monotonic_ns())  # read the last records of the ranks
            job.end()


class _Launcher:
    def __init__(self, pid: int) -> None:
        self._pid = pid
        #: Identity of the process. A later process with the same id has another identity.
        self._began = identity(pid)
        if not self.lives:
            raise UsageError(
                f"--parent {pid}: no running process with this id can be seen here; give the "
                "process id of the job's launcher, or leave --parent out to watch until this "
                "host's ranks have ended"
            )

    @property
    def lives(self) -> bool:
        # A parent runs even if /proc does not show it.
        is_parent = os.getppid() == self._pid
        return is_parent or (bool(self._began) and identity(self._pid) == self._began)


def _search(
    directory: Path, jobs: dict[Path, WatchedJob], tasks: Callable[[Path], list[WatchTask]]
) -> None:
    for folder in (directory, *sorted(directory.glob("job_*"))):
        if folder not in jobs and any(folder.glob("rank_*.trace")):
            jobs[folder] = WatchedJob(folder, tasks)
    for job in jobs.values():
        job.search()
