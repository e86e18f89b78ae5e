"""What a caller of commprof can act on. A defect of commprof itself is an assertion instead."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path


class CommprofError(Exception):
    """Base of everything that the caller can act on: a command prints it as one line on stderr."""

    exit_code = 1
    """What the command returns to the shell."""


class UsageError(CommprofError):
    """A value that cannot be used. The message names it, the allowed set and the next step."""

    exit_code = 2


class TraceError(CommprofError):
    """A file is no trace of commprof, of a version not known here, or damaged at its start."""


class RankFailedError(CommprofError):
    """One rank of a job failed, and the job with it."""

    def __init__(
        self,
        rank: int,
        process_exit_code: int,
        reason: str,
        log_path: Path,
        exit_codes: Mapping[int, int] | None = None,
    ) -> None:
        """Name the rank and where to read on.

        rank: the global rank that failed first.
        process_exit_code: of that rank's process; minus the signal's number when a signal ended it.
        reason: the exception's line, or empty when the process left none.
        log_path: the file that holds the rank's traceback and whatever else it printed.
        exit_codes: by rank, of all processes that had failed by then; None: just this one.
        """
        self.rank = rank
        self.process_exit_code = process_exit_code
        self.reason = reason
        self.log_path = log_path
        self.exit_codes = {rank: process_exit_code} if exit_codes is None else dict(exit_codes)
        super().__init__(f"rank {rank} failed: {reason or self._ending()}; see {log_path}")

    def _ending(self) -> str:
        hint = " (often the kernel, out of memory)"
        killed = self.process_exit_code == -signal.SIGKILL
        return ending_of_process(self.process_exit_code) + (hint if killed else "")


def ending_of_process(exit_code: int) -> str:
    """How a process ended, in words; minus the signal's number when a signal ended it."""
    if exit_code >= 0:
        return f"its process ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"its process was ended by {name}"
