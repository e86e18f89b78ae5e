"""Checks that the hosts have free CPU time and memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from commprof.analysis.checks.outcome import FAIL, PASS, WARN, Outcome, per_host
from commprof.checks.ranks import Ranks

NAME = "pressure"
_PROC = Path("/proc")
#: The check warns if some task waited for a core in more than this percentage of the last 10 s.
_CPU_PERCENT = 20.0
#: The check warns if all tasks waited for memory in more than this percentage of the last 10 s.
_MEMORY_PERCENT = 1.0
#: The check warns if less than this share of the memory is available.
_LITTLE = 0.10
#: The check fails if less than this share of the memory is available.
_TOO_LITTLE = 0.02


@dataclass(frozen=True)
class Load:
    """CPU and memory pressure of one host. A figure is None if the kernel does not report it."""

    #: Percent of the last 10 s in which some task waited for a core (PSI's cpu some avg10).
    cpu_percent: float | None
    #: Percent of the last 10 s in which all tasks waited for memory (PSI's memory full avg10).
    memory_percent: float | None
    #: Share of the host's memory that is available, from 0 to 1.
    available: float | None


def measure(ranks: Ranks) -> tuple[str, Load]:
    """Returns this rank's host name and the host's load."""
    return ranks.host, read_load(_PROC)


def read_load(proc: Path) -> Load:
    """Reads the load from a mounted procfs; see Documentation/accounting/psi.rst of Linux."""
    memory = _text(proc / "meminfo")
    total, available = (
        re.search(rf"^{name}:\s+(\d+) kB", memory, re.MULTILINE)
        for name in ("MemTotal", "MemAvailable")
    )
    return Load(
        cpu_percent=_average(_text(proc / "pressure" / "cpu"), "some"),
        memory_percent=_average(_text(proc / "pressure" / "memory"), "full"),
        available=int(available[1]) / int(total[1]) if total and available else None,
    )


def judge(values: Sequence[tuple[str, Load]]) -> Outcome:
    """Warns of hosts with busy cores or little memory; fails if memory is nearly exhausted."""
    figures, advice, status = [], [], PASS
    for host, load in sorted(per_host(values).items()):
        figures.append(
            f"{host}, last 10 s: some tasks waited for a core {_shown(load.cpu_percent, 1)} of the "
            f"time, all tasks waited for memory {_shown(load.memory_percent, 1)} of the time; "
            f"available memory: {_shown(load.available, 100)}"
        )
        if (load.cpu_percent or 0) > _CPU_PERCENT:
            status = WARN if status == PASS else status
            advice.append(f"other processes use the cores of {host}: run top there to find them")
        if (load.memory_percent or 0) > _MEMORY_PERCENT or _short(load, _LITTLE):
            status = WARN if status == PASS else status
            advice.append(f"memory is short on {host}: run free -h there, or use smaller batches")
        if _short(load, _TOO_LITTLE):
            status = FAIL
    return Outcome(NAME, status, "; ".join(figures), "; ".join(advice))


def _average(text: str, kind: str) -> float | None:
    match = re.search(rf"^{kind} avg10=(\d+\.\d+)", text, re.MULTILINE)
    return float(match[1]) if match else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _short(load: Load, least: float) -> bool:
    return load.available is not None and load.available < least


def _shown(value: float | None, scale: float) -> str:
    return "unknown" if value is None else f"{value * scale:.3g} %"
