"""Whether the process that wrote a trace is still there, as far as that can be known."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
#: A process is in /proc before it takes the time that its trace begins with.
_TOLERANCE_NS = 1_000_000_000


class State(Enum):
    """Of a process, now."""

    RUNS = "runs"
    STOPPED = "stopped"
    GONE = "gone"
    #: It ran on another machine, before a reboot, or in another PID namespace.
    UNKNOWN = "unknown"


def state_of(metadata: Mapping[str, Any]) -> State:
    """State of the process with this trace metadata: ``pid``, ``machine`` and ``clock``."""
    machine = metadata["machine"]
    try:
        here = Path("/proc/sys/kernel/random/boot_id").read_text().split("\n", 1)[0]
        namespace = os.readlink("/proc/self/ns/pid")
        times = os.readlink("/proc/self/ns/time")
    except OSError:
        return State.UNKNOWN
    if not here or (machine["boot_id"], machine["pid_namespace"]) != (here, namespace):
        return State.UNKNOWN
    try:
        stat = Path(f"/proc/{metadata['pid']}/stat").read_text()
    except FileNotFoundError:
        return State.GONE
    except OSError:
        return State.UNKNOWN
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":  # ended, its parent has not asked yet
        return State.GONE
    if machine["time_namespace"] == times and _began_later(int(fields[19]), metadata["clock"]):
        return State.GONE  # another process has its number
    return State.STOPPED if fields[0] in "tT" else State.RUNS


def _began_later(start_ticks: int, clock: Mapping[str, Any]) -> bool:
    """Whether a process began after the trace did. ``start_ticks``: since boot, as in /proc."""
    # CLOCK_BOOTTIME also counts suspension. Less may have come before the trace than until now:
    # the start is then taken for too early, never for too late.
    suspended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    began_ns = start_ticks * _TICK_NS - suspended_ns
    return bool(began_ns > clock["monotonic_ns"] + _TOLERANCE_NS)
