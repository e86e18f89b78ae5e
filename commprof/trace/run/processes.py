"""The process that wrote a trace, as far as this one can know it from /proc (proc(5)).

No file is trusted to be there. A process is the one that a trace names only on its host since that
booted, in its PID namespace, and if it began before the trace did: numbers are given out again.
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
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
#: Of ``/proc/PID/stat`` behind the name: state, user and system time, start, resident pages.
_STATE, _USER, _SYSTEM, _START, _RESIDENT = 0, 11, 12, 19, 21
#: A process is in /proc before it takes the time that its trace begins with.
_TOLERANCE_NS: Final = 1_000_000_000


class State(Enum):
    """State of a process."""

    RUNS = "runs"
    STOPPED = "stopped"
    GONE = "gone"
    #: It ran on another machine, before a reboot, or in another PID namespace.
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Stat:
    """What the kernel counts of a process."""

    #: One letter: R, S, D, T, t, Z, X, ...
    code: str
    #: When it began, in ticks of CLOCK_BOOTTIME: tells it from a later one of its number.
    start_ticks: int
    cpu_s: float
    resident_bytes: int

    @property
    def ended(self) -> bool:
        """True if the process is over, whether or not its parent has asked."""
        return self.code in "ZX"


def stat_of(pid: int | str, proc: Path = PROC) -> Stat | None:
    """Returns /proc/PID/stat, None if the process is gone; raises OSError where it is hidden."""
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the name before may hold anything
    if len(fields) <= _RESIDENT:
        return None
    return Stat(
        fields[_STATE],
        int(fields[_START]),
        (int(fields[_USER]) + int(fields[_SYSTEM])) / TICKS_PER_S,
        int(fields[_RESIDENT]) * _PAGE_BYTES,
    )


def identity(pid: int) -> str:
    """Text that tells a process from a later one of the same id; empty if gone or hidden."""
    try:
        found = stat_of(pid)
    except OSError:
        return ""
    return "" if found is None or found.ended else str(found.start_ticks)


class Here:
    """The host, boot and namespaces that this process is in."""

    def __init__(self, proc: Path = PROC) -> None:
        """``proc`` is a mounted procfs."""
        self._proc = proc
        self._boot_id = text_of(proc / "sys/kernel/random/boot_id").strip()
        self._pids, self._times = (link_of(proc / "self/ns" / name) for name in ("pid", "time"))

    def is_local(self, metadata: Mapping[str, Any]) -> bool:
        """True if the trace's rank runs, or ran, under this kernel since it booted."""
        return bool(self._boot_id) and metadata["machine"]["boot_id"] == self._boot_id

    def shares_pids(self, metadata: Mapping[str, Any]) -> bool:
        """True if the rank's process has the same id here."""
        same = metadata["machine"]["pid_namespace"] == self._pids != ""
        return same and self.is_local(metadata)

    def shares_clock(self, metadata: Mapping[str, Any]) -> bool:
        """True if the trace's times are by this process's CLOCK_MONOTONIC."""
        same = metadata["machine"]["time_namespace"] == self._times != ""
        return same and self.is_local(metadata)

    def find(self, metadata: Mapping[str, Any]) -> tuple[State, Stat | None]:
        """Finds the process of a trace's metadata; no Stat of one that is gone."""
        if not self.shares_pids(metadata):
            return State.UNKNOWN, None
        try:
            found = stat_of(metadata["pid"], self._proc)
        except OSError:
            return State.UNKNOWN, None
        if found is None or found.ended:
            return State.GONE, None
        if self.shares_clock(metadata) and _began_later(found.start_ticks, metadata["clock"]):
            return State.GONE, None  # another process has its number
        return State.STOPPED if found.code in "tT" else State.RUNS, found


def state_of(metadata: Mapping[str, Any]) -> State:
    """State of the process that trace metadata describe: ``pid``, ``machine`` and ``clock``."""
    return Here().find(metadata)[0]


def text_of(path: Path | str) -> str:
    """Content of a system file; empty where it cannot be read."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def link_of(path: Path | str) -> str:
    """Target of a system link; empty where it cannot be read."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _began_later(start_ticks: int, clock: Mapping[str, Any]) -> bool:
    """Whether a process began after the trace did. ``start_ticks``: since boot, as in /proc."""
    # CLOCK_BOOTTIME also counts suspension. Less may have come before the trace than until now:
    # the start is then taken for too early, never for too late.
    suspended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    began_ns = start_ticks * 1_000_000_000 // TICKS_PER_S - suspended_ns
    return bool(began_ns > clock["monotonic_ns"] + _TOLERANCE_NS)
