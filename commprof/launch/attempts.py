"""Attempts at one world size: restarts after a failure, and a log of the attempts.

With torch's elastic restarts, the ranks would look for their peers at the previous attempt's
rendezvous. So each restart is a separate launch with a new rendezvous.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from commprof.errors import RankFailedError
from commprof.trace.run.endings import Endings, LaunchedAttempt


def run_attempts(start: Callable[[int], None], directory: Path, max_restarts: int = 0) -> None:
    """Starts all ranks; after a failure, starts them again, at most `max_restarts` times.

    Args:
        start: starts all ranks; called with the index of the attempt, from 0.
        directory: directory of `endings.json`, the log of attempts.
        max_restarts: largest number of restarts.

    Raises:
        RankFailedError: a rank failed in the last attempt. Other exceptions of `start` cause no
            restart.
    """
    log = _Log(directory)
    for attempt in itertools.count():
        log.begins(attempt)
        codes: Mapping[int, int] = {}
        try:
            start(attempt)
            return
        except RankFailedError as error:
            codes = error.exit_codes
            if attempt >= max_restarts:
                raise
            left = f"restart {attempt + 1} of {max_restarts}"
            print(f"commprof: {error}; {left}", file=sys.stderr)
        finally:
            log.ended(codes)


class _Log:
    """Log of attempts in `endings.json`; a failed write is only reported on stderr."""

    def __init__(self, directory: Path) -> None:
        # imported here so that the fork server does not preload it
        from commprof.capture.job.metadata import machine

        self._directory = directory
        clock = {"monotonic_ns": time.monotonic_ns()}
        launcher = {"pid": os.getpid(), "machine": machine(), "clock": clock}
        self._endings = Endings(launcher, ())
        self._oom_kills = 0

    def begins(self, attempt: int) -> None:
        self._oom_kills = _oom_kills()
        begun = LaunchedAttempt(attempt, time.monotonic_ns(), 0, {}, 0)
        self._keep((*self._endings.attempts, begun))

    def ended(self, exit_codes: Mapping[int, int]) -> None:
        *others, last = self._endings.attempts
        kills = _oom_kills() - self._oom_kills
        ended = replace(
            last, end_ns=time.monotonic_ns(), exit_codes=dict(exit_codes), oom_kills=kills
        )
        self._keep((*others, ended))

    def _keep(self, attempts: tuple[LaunchedAttempt, ...]) -> None:
        self._endings = replace(self._endings, attempts=attempts)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._endings.save(self._directory)
        except OSError as error:
            where = f"{self._directory}: {error.strerror}"
            print(
                f"commprof: cannot write endings.json in {where}; the report may lack the ranks' "
                "exit codes",
                file=sys.stderr,
            )


def _oom_kills() -> int:
    """Number of processes of this cgroup that the OOM killer has killed so far; 0 if unknown."""
    try:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except (OSError, ValueError):
        return 0
    paths = {controllers: path for _, controllers, path in lines}
    # cgroup v2 has one hierarchy, without a name; cgroup v1 has a separate hierarchy for memory.
    for path in (
        f"/sys/fs/cgroup{paths.get('', '')}/memory.events",
        f"/sys/fs/cgroup/memory{paths.get('memory', '')}/memory.oom_control",
    ):
        try:
            words = Path(path).read_text().split()
            return int(words[words.index("oom_kill") + 1])
        except (OSError, ValueError, IndexError):
            continue
    return 0
