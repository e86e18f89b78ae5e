"""Finds the state of the process that wrote a trace, from /proc (proc(5)).

Process ids are reused, so another process may have the id that a trace names. A process with the
same id wrote the trace if the trace comes from this host, boot and PID namespace, and if the
process began before the trace.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

PROC: Final = Path("/proc")
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_READ_BYTES: Final = 65_536
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
#: Indices of the fields that follow the name in ``/proc/PID/stat``: state, user and system time,
#: start, resident pages.
_STATE, _USER, _SYSTEM, _START, _RESIDENT = 0, 11, 12, 19, 21
#: A process counts as begun after a trace only if it began more than this time later.
_TOLERANCE_NS: Final = 1_000_000_000


class State(Enum):
    """State of a process."""

    RUNS = "runs"
    STOPPED = "stopped"
    GONE = "gone"
    #: The process ran on another machine, before a reboot, or in another PID namespace; or /proc
    #: hides it.
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Stat:
    """State, start, CPU time and memory of a process, from /proc/PID/stat."""

    #: State as one letter: R, S, D, T, t, Z, X, ...
    code: str
    #: Start in ticks of CLOCK_BOOTTIME. Processes with the same id have different starts.
    start_ticks: int
    cpu_s: float
    resident_bytes: int

    @property
    def ended(self) -> bool:
        """True if the process has ended, even if its parent has not waited for it yet."""
        return self.code in "ZX"


def stat_of(pid: int | str, proc: Path = PROC) -> Stat | None:
    """Reads /proc/PID/stat; None if the process is gone. Raises OSError if the file is hidden."""
    try:
        text = _content(proc / str(pid) / "stat")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the process name may contain ")" too
    if len(fields) <= _RESIDENT:
        return None
    return Stat(
        fields[_STATE],
        int(fields[_START]),
        (int(fields[_USER]) + int(fields[_SYSTEM])) / TICKS_PER_S,
        int(fields[_RESIDENT]) * _PAGE_BYTES,
    )


def identity(pid: int) -> str:
    """Returns the start of a process in clock ticks; empty if it has ended or is hidden.

    Processes with the same id have different starts.
    """
    try:
        status = stat_of(pid)
    except OSError:
        return ""
    return "" if status is None or status.ended else str(status.start_ticks)


class Here:
    """The host, boot and namespaces that this process is in."""

    def __init__(self, proc: Path = PROC) -> None:
        """``proc`` is a mounted procfs."""
        self._proc = proc
        self._boot_id = text_of(proc / "sys/kernel/random/boot_id").strip()
        self._pids, self._times = (link_of(proc / "self/ns" / name) for name in ("pid", "time"))

    def is_local(self, metadata: Mapping[str, Any]) -> bool:
        """True if the trace's rank ran on this machine, since the machine's last boot."""
        return self.is_on(metadata["machine"]["boot_id"])

    def is_on(self, boot_id: str) -> bool:
        """True if the boot id is that of this machine's last boot."""
        return bool(self._boot_id) and boot_id == self._boot_id

    def shares_pids(self, metadata: Mapping[str, Any]) -> bool:
        """True if the rank's process id is valid in this PID namespace."""
        same = metadata["machine"]["pid_namespace"] == self._pids != ""
        return same and self.is_local(metadata)

    def shares_clock(self, metadata: Mapping[str, Any]) -> bool:
        """True if the trace's times are on this process's CLOCK_MONOTONIC."""
        same = metadata["machine"]["time_namespace"] == self._times != ""
        return same and self.is_local(metadata)

    def find(self, metadata: Mapping[str, Any]) -> tuple[State, Stat | None]:
        """Returns State and Stat of a trace's process; Stat is None if State is GONE or UNKNOWN."""
        if not self.shares_pids(metadata):
            return State.UNKNOWN, None
        try:
            status = stat_of(metadata["pid"], self._proc)
        except OSError:
            return State.UNKNOWN, None
        if status is None or status.ended:
            return State.GONE, None
        if self.shares_clock(metadata) and _began_later(status.start_ticks, metadata["clock"]):
            return State.GONE, None  # another process has the id now
        return State.STOPPED if status.code in "tT" else State.RUNS, status


def state_of(metadata: Mapping[str, Any]) -> State:
    """Returns the state of the process that a trace's metadata describes."""
    return Here().find(metadata)[0]


def text_of(path: Path | str) -> str:
    """Returns the content of a file under /proc; empty if the file cannot be read."""
    try:
        return _content(path)
    except OSError:
        return ""


def _content(path: Path | str) -> str:
    """Avoids ``open``, which is slow: a monitor reads thousands of files per second."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = iter(lambda: os.read(descriptor, _READ_BYTES), b"")
        return b"".join(parts).decode(errors="replace")
    finally:
        os.close(descriptor)


def link_of(path: Path | str) -> str:
    """Returns the target of a symbolic link under /proc; empty if the link cannot be read."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _began_later(start_ticks: int, clock: Mapping[str, Any]) -> bool:
    # CLOCK_BOOTTIME also counts suspension. If the host was suspended since the process began, the
    # computed start is too early, never too late.
    suspended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    began_ns = start_ticks * 1_000_000_000 // TICKS_PER_S - suspended_ns
    return bool(began_ns > clock["monotonic_ns"] + _TOLERANCE_NS)
