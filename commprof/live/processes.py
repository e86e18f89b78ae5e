"""What the kernel counts of processes and of this host (proc(5)); no file is trusted to be there.

A process is the one that a trace names only on its host, in its PID namespace, and if it began
before the trace did: numbers are given out again.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any, Final

from commprof.live.state import HostState, ProcessState

_PROC: Final = Path("/proc")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
#: Of ``/proc/PID/stat`` behind the name: state, user and system time, start, resident pages.
_STATE, _USER, _SYSTEM, _START, _RESIDENT = 0, 11, 12, 19, 21
#: Of the first line of ``/proc/stat``.
_IDLE, _IOWAIT = 3, 4
_OURS: Final = "commprof-"
_MOST_INTERFACES: Final = 64


class Here:
    """Which host, boot and PID namespace this process is in."""

    def __init__(self, proc: Path = _PROC) -> None:
        """``proc`` is a mounted procfs."""
        self._proc = proc
        self._boot_id = _text(proc / "sys/kernel/random/boot_id").strip()
        self._namespaces = {name: _link(proc / "self/ns" / name) for name in ("pid", "time")}

    def is_local(self, metadata: dict[str, Any]) -> bool:
        """Whether the rank of this trace runs, or ran, under this kernel since it booted."""
        return bool(self._boot_id) and metadata["machine"]["boot_id"] == self._boot_id

    def shares_clock(self, metadata: dict[str, Any]) -> bool:
        """Whether the trace's times are by this process's CLOCK_MONOTONIC."""
        same = metadata["machine"]["time_namespace"] == self._namespaces["time"]
        return self.is_local(metadata) and same

    def process(self, metadata: dict[str, Any]) -> tuple[ProcessState | None, bool | None]:
        """The rank's process, and whether it lives; None for what cannot be told."""
        same = metadata["machine"]["pid_namespace"] == self._namespaces["pid"] != ""
        if not (same and self.is_local(metadata)):
            return None, None
        directory = self._proc / str(metadata["pid"])
        fields = _stat_fields(directory)
        if fields is None or fields[_STATE] in "ZX":
            return None, False
        began_ns = int(fields[_START]) * 1_000_000_000 // _TICKS
        if self.shares_clock(metadata) and began_ns > metadata["clock"]["monotonic_ns"] + _slack():
            return None, False
        cpu_s = (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS
        resident = int(fields[_RESIDENT]) * _PAGE_BYTES
        return ProcessState(cpu_s, resident, _helpers_cpu_s(directory)), True

    def host(self) -> HostState | None:
        """This host; None where its kernel does not tell."""
        words = _text(self._proc / "stat").split("\n", 1)[0].split()[1:9]
        memory = dict(
            line.split(":", 1) for line in _text(self._proc / "meminfo").splitlines() if ":" in line
        )
        try:
            ticks = [int(word) for word in words]
            idle = ticks[_IDLE] + ticks[_IOWAIT]
            total, available = (
                int(memory[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable")
            )
        except (KeyError, IndexError, ValueError):
            return None
        busy = sum(ticks) - idle
        interfaces = _interfaces(_text(self._proc / "net/dev"))
        name = socket.gethostname()
        return HostState(name, busy / _TICKS, idle / _TICKS, total, available, interfaces)


def own_process() -> tuple[float, int]:
    """CPU time of this process in seconds, and its resident bytes."""
    fields = _stat_fields(_PROC / "self")
    resident = int(fields[_RESIDENT]) * _PAGE_BYTES if fields is not None else 0
    times = os.times()
    return times.user + times.system, resident


def identity(pid: int) -> str:
    """What tells a process from a later one of the same number; empty if it is gone."""
    fields = _stat_fields(_PROC / str(pid))
    return "" if fields is None or fields[_STATE] in "ZX" else fields[_START]


def _slack() -> int:
    """CLOCK_BOOTTIME, which a start is counted in, is ahead of CLOCK_MONOTONIC by suspensions."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns() + 1_000_000_000


def _stat_fields(directory: Path) -> list[str] | None:
    """Those behind the process's name, which may hold anything."""
    fields = _text(directory / "stat").rpartition(")")[2].split()
    return fields if len(fields) > _RESIDENT else None


def _helpers_cpu_s(directory: Path) -> float:
    """CPU time of the threads that commprof started in that process."""
    nanoseconds = 0
    try:
        threads = list((directory / "task").iterdir())
    except OSError:
        return 0.0
    for thread in threads:
        if _text(thread / "comm").startswith(_OURS):
            nanoseconds += int((_text(thread / "schedstat").split() or ["0"])[0])
    return nanoseconds / 1e9


def _interfaces(text: str) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for line in text.splitlines()[2:]:
        name, _, counters = line.partition(":")
        words = counters.split()
        if len(words) >= 9 and len(found) < _MOST_INTERFACES:
            found[name.strip()] = (int(words[0]), int(words[8]))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
