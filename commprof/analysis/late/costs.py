"""What all waiting of a run comes from, by rank and cause, and how long a rank had no core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commprof.analysis.step.breakdown import Breakdown
from commprof.analysis.step.exposure import CAUSES
from commprof.trace.schema import PHASES
from commprof.units import NS_PER_MS, ns_to_ms

#: A rank's longer phase is told if it lacked a core for this share of the step in it.
_LEAST_SHARE = 0.01


@dataclass(frozen=True)
class WaitCost:
    """Waiting that began at one rank for one cause."""

    #: Global rank where it began.
    rank: int
    #: What that rank did meanwhile, of ``exposure.CAUSES``.
    cause: str
    #: Per step, mean over the ranks that were seen; all of a run add up to its waiting.
    wait_ms: float
    #: Of all waiting.
    share: float


@dataclass(frozen=True)
class WithoutCore:
    """A rank's phase that takes longer because the rank had no core."""

    rank: int
    phase: str
    #: Beyond the median of the others, mean per step, and the part of it without a core.
    longer_ms: float
    no_core_ms: float


def wait_costs(parts: Sequence[Breakdown]) -> tuple[WaitCost, ...]:
    """All waiting in these steps by where it began, the most first."""
    caused = np.sum([part.caused_ns.sum(axis=0) for part in parts], axis=0)
    steps, total = len(parts[0].step), float(caused.sum())
    cells = np.argwhere(caused > 0)
    order = np.argsort(-caused[caused > 0], kind="stable")
    return tuple(
        WaitCost(
            rank,
            CAUSES[cause],
            ns_to_ms(float(caused[rank, cause])) / steps / len(parts),
            float(caused[rank, cause]) / total,
        )
        for rank, cause in cells[order].tolist()
    )


def without_core(ranks: Sequence[int], parts: Sequence[Breakdown]) -> WithoutCore | None:
    """The rank and phase with the longest run delay beyond the others', if that matters."""
    if len(parts) < 2 or len(parts[0].step) == 0:
        return None
    delay, work = (
        np.stack([getattr(part, name).mean(axis=at) for part in parts])
        for name, at in (("run_delay_ns", 0), ("work_ns", 1))
    )
    beyond, longer = (
        each - np.stack([np.median(np.delete(each, i, 0), axis=0) for i in range(len(each))])
        for each in (delay, work)
    )
    place, phase = np.unravel_index(int(np.argmax(beyond)), beyond.shape)
    least = _LEAST_SHARE * float(np.mean([part.wall_ns.mean() for part in parts]))
    found = float(beyond[place, phase]), float(longer[place, phase])
    if found[0] < least or found[1] <= 0:
        return None
    return WithoutCore(
        ranks[int(place)], PHASES[int(phase)], found[1] / NS_PER_MS, min(found) / NS_PER_MS
    )
