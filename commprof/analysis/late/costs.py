"""Splits waiting by the rank and the activity that caused it, and explains a rank's longer phase.

The explanation uses counts of the Linux kernel, such as page faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.analysis.late.stragglers import beyond_the_others
from commprof.analysis.step.breakdown import Breakdown
from commprof.analysis.step.exposure import CAUSES
from commprof.analysis.step.rank_parts import RankParts
from commprof.trace import columns
from commprof.trace.schema import PHASES
from commprof.units import NS_PER_MS, ns_to_ms

#: A rank's work is reported as longer if it exceeds the other ranks' work by at least this fraction
#: of the step.
LEAST_SHARE = 0.01
#: Less waiting than this, summed over all steps, is only a rounding error.
_LEAST_NS = 1.0
#: This many minor page faults per ms explain why a phase takes longer.
_FAULTS_PER_MS = 500.0

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class WaitCost:
    """Waiting caused by one rank, for one reason."""

    rank: int
    #: Activity of this rank while the others waited, one of ``exposure.CAUSES``.
    cause: str
    #: Mean waiting per step and recorded rank.
    wait_ms: float
    #: Fraction of all waiting.
    share: float


@dataclass(frozen=True)
class LongerPhase:
    """A phase that takes longer on one rank, with counts of the Linux kernel that explain it.

    Each figure is the rank's mean per step minus the median of the other ranks, or 0 if this
    difference is negative. A count that the kernel does not provide is 0. No time exceeds
    ``longer_ms``, and ``throttled_ms`` does not exceed ``no_core_ms``.
    """

    rank: int
    phase: str
    longer_ms: float
    #: Part of ``longer_ms`` in which the training thread could run but had no core.
    no_core_ms: float
    #: Time in which the CPU quota of the thread's cgroup was used up.
    throttled_ms: float
    #: Time in which tasks of the host stalled for memory.
    memory_stall_ms: float
    involuntary_switches: float
    #: Faults on pages that were in memory or new.
    minor_faults: float
    #: Faults on pages that were read from disk.
    major_faults: float

    @property
    def has_many_faults(self) -> bool:
        """True if minor page faults of about 0.5 us explain at least a quarter of ``longer_ms``."""
        return self.minor_faults >= _FAULTS_PER_MS * self.longer_ms


def wait_costs(parts: Sequence[Breakdown]) -> tuple[WaitCost, ...]:
    """Splits the waiting by the rank and the activity that caused it, the largest part first."""
    of_ranks = RankParts.of(parts)
    steps = len(of_ranks.step)
    caused = of_ranks.caused_in_all(np.ones(steps, dtype=np.bool_)).sum(axis=0)
    total = float(caused.sum())
    counted = caused >= _LEAST_NS
    cells = np.argwhere(counted)
    order = np.argsort(-caused[counted], kind="stable")
    return tuple(
        WaitCost(
            rank,
            CAUSES[cause],
            ns_to_ms(float(caused[rank, cause])) / steps / len(parts),
            float(caused[rank, cause]) / total,
        )
        for rank, cause in cells[order].tolist()
    )


def longer_phase(ranks: Sequence[int], parts: Sequence[Breakdown]) -> LongerPhase | None:
    """Finds a phase that takes longer on one rank than the median of the other ranks.

    The phase's extra time must be explained by counts of the Linux kernel: run delay (time in which
    the training thread could run but had no core), or page faults. If several phases qualify,
    returns the phase with the longest run delay. Returns None if no phase qualifies.
    """
    of_ranks = RankParts.of(parts)
    if len(of_ranks) < 2 or len(of_ranks.step) == 0:
        return None
    counts = of_ranks.column(lambda part: part.host.counts.mean(axis=1))
    delay = of_ranks.column(lambda part: part.host.run_delay_ns.mean(axis=1))
    work = of_ranks.column(lambda part: part.work_ns.mean(axis=2))
    least_ms = LEAST_SHARE * ns_to_ms(float(of_ranks.table("wall").mean(axis=1).mean()))
    values = np.stack([work, delay, *np.moveaxis(counts, 2, 0)], axis=2)
    beyond = np.maximum(0.0, beyond_the_others(values))
    found = [
        _longer(ranks[place], PHASES[phase], *beyond[place, phase].tolist())
        for place, phase in np.argwhere(beyond[:, :, 0] / NS_PER_MS >= least_ms).tolist()
    ]
    held_up = [
        each
        for each in found
        if each.no_core_ms >= least_ms or each.major_faults >= 1 or each.has_many_faults
    ]
    return max(held_up, key=lambda each: (each.no_core_ms, each.longer_ms), default=None)


def _longer(
    rank: int, phase: str, longer_ns: float, no_core_ns: float, *counts: float
) -> LongerPhase:
    counted = dict(zip(columns.HOST_COUNTS, counts, strict=True))
    no_core_ns = min(no_core_ns, longer_ns)
    return LongerPhase(
        rank=rank,
        phase=phase,
        longer_ms=ns_to_ms(longer_ns),
        no_core_ms=ns_to_ms(no_core_ns),
        # The cgroup's time is a sum over cores, so it may exceed the thread's run delay.
        throttled_ms=ns_to_ms(min(counted["throttled_ns"], no_core_ns)),
        memory_stall_ms=ns_to_ms(min(counted["memory_stall_ns"], longer_ns)),
        involuntary_switches=counted["involuntary_switches"],
        minor_faults=counted["minor_faults"],
        major_faults=counted["major_faults"],
    )
