"""Errors that a caller of commprof can act on; defects of commprof itself raise other errors."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path


class CommprofError(Exception):
    """Base class of errors that the caller can act on; a command prints them as one line."""

    exit_code = 1
    """Exit code of a command that ends with this error."""


class UsageError(CommprofError):
    """A value cannot be used. The message names the value, and says what to do."""

    exit_code = 2


class TraceError(CommprofError):
    """A file is not a trace of commprof, has an unknown version, or is damaged at its start."""


class RankFailedError(CommprofError):
    """One rank of a job failed, so the job failed too."""

    def __init__(
        self,
        rank: int,
        process_exit_code: int,
        reason: str,
        log_path: Path,
        exit_codes: Mapping[int, int] | None = None,
    ) -> None:
        """Builds a message that names the rank, the reason and the log file.

        rank: the global rank that failed first.
        process_exit_code: exit code of the rank's process. If a signal ended the process, minus the
            number of the signal.
        reason: type of the exception and first line of its message; empty if unknown.
        log_path: the file with the rank's output and traceback.
        exit_codes: exit codes of all failed ranks, by rank; None if only ``rank`` failed.
        """
        self.rank = rank
        self.process_exit_code = process_exit_code
        self.reason = reason
        self.log_path = log_path
        self.exit_codes = {rank: process_exit_code} if exit_codes is None else dict(exit_codes)
        super().__init__(f"rank {rank} failed: {reason or self._ending()}; see {log_path}")

    def _ending(self) -> str:
        hint = " (often by the kernel, when memory runs out)"
        killed = self.process_exit_code == -signal.SIGKILL
        return ending_of_process(self.process_exit_code) + (hint if killed else "")


def ending_of_process(exit_code: int, of_several: bool = False) -> str:
    """Describes how a process ended. ``of_several`` puts the text in the plural.

    A negative exit code is minus the number of the signal that ended the process.
    """
    process, was = ("their processes", "were") if of_several else ("its process", "was")
    if exit_code >= 0:
        return f"{process} ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"{process} {was} ended by {name}"
