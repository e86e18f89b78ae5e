"""Whether the hosts have time and memory to spare."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from commprof.analysis.checks.outcome import FAIL, PASS, WARN, Outcome, per_host
from commprof.checks.ranks import Ranks

NAME = "pressure"
_PROC = Path("/proc")
#: Of the last 10 s: some task waited for a core; all tasks that could run waited for memory.
_CPU_PERCENT = 20.0
_MEMORY_PERCENT = 1.0
#: Memory that can be had, of all.
_LITTLE, _TOO_LITTLE = 0.10, 0.02


@dataclass(frozen=True)
class Load:
    """CPU and memory pressure of one host; None where its kernel does not tell."""

    #: Percent of the last 10 s in which some task waited for a core (PSI's cpu some avg10).
    cpu_percent: float | None
    #: Percent in which no task could go on for want of memory (PSI's memory full avg10).
    memory_percent: float | None
    #: Share of the memory that can still be had.
    available: float | None


def measure(ranks: Ranks) -> tuple[str, Load]:
    """Reads the load of the host, before the checks that cause load."""
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
    """Warns of hosts that others keep busy, fails where memory is nearly gone."""
    figures, advice, status = [], [], PASS
    for host, load in sorted(per_host(values).items()):
        figures.append(
            f"{host}: waiting for cores {_shown(load.cpu_percent, 1)} and memory "
            f"{_shown(load.memory_percent, 1)} of the last 10 s, memory available "
            f"{_shown(load.available, 100)}"
        )
        if (load.cpu_percent or 0) > _CPU_PERCENT:
            status = WARN if status == PASS else status
            advice.append(f"others use the cores of {host}: see top there")
        if (load.memory_percent or 0) > _MEMORY_PERCENT or (load.available or 1) < _LITTLE:
            status = WARN if status == PASS else status
            advice.append(f"memory is short on {host}: see free -h there, take smaller batches")
        if load.available is not None and load.available < _TOO_LITTLE:
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


def _shown(value: float | None, scale: float) -> str:
    return "unknown" if value is None else f"{value * scale:.3g} %"
