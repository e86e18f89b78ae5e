"""What the kernel counts of ranks' processes and of this host; no file is trusted to be there."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, Final

from commprof.monitor.state import HostState, ProcessState
from commprof.trace.run.processes import PROC, TICKS_PER_S, Here, State, stat_of, text_of

#: Of the first line of ``/proc/stat``.
_IDLE, _IOWAIT = 3, 4
_OURS: Final = "commprof-"
_MOST_INTERFACES: Final = 64


def rank_process(here: Here, metadata: dict[str, Any]) -> tuple[ProcessState | None, bool | None]:
    """The rank's process, and whether it lives; None for what cannot be told."""
    state, found = here.find(metadata)
    if found is None:
        return None, None if state is State.UNKNOWN else False
    helpers_cpu_s = _helpers_cpu_s(PROC / str(metadata["pid"]))
    return ProcessState(found.cpu_s, found.resident_bytes, helpers_cpu_s), True


def this_host(proc: Path = PROC) -> HostState | None:
    """This host, by its mounted procfs; None where its kernel does not tell."""
    words = text_of(proc / "stat").split("\n", 1)[0].split()[1:9]
    memory = dict(
        line.split(":", 1) for line in text_of(proc / "meminfo").splitlines() if ":" in line
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
    interfaces = _interfaces(text_of(proc / "net/dev"))
    name = socket.gethostname()
    return HostState(name, busy / TICKS_PER_S, idle / TICKS_PER_S, total, available, interfaces)


def own_process() -> tuple[float, int]:
    """CPU time of this process in seconds, and its resident bytes."""
    found = stat_of("self")
    times = os.times()
    return times.user + times.system, 0 if found is None else found.resident_bytes


def _helpers_cpu_s(directory: Path) -> float:
    """CPU time of the threads that commprof started in that process."""
    nanoseconds = 0
    try:
        threads = list((directory / "task").iterdir())
    except OSError:
        return 0.0
    for thread in threads:
        if text_of(thread / "comm").startswith(_OURS):
            nanoseconds += int((text_of(thread / "schedstat").split() or ["0"])[0])
    return nanoseconds / 1e9


def _interfaces(text: str) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for line in text.splitlines()[2:]:
        name, _, counters = line.partition(":")
        words = counters.split()
        if len(words) >= 9 and len(found) < _MOST_INTERFACES:
            found[name.strip()] = (int(words[0]), int(words[8]))
    return found
