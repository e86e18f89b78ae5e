"""Which rank takes longer for its own work than the others, step after step.

Waiting shows who came last, and with that also whom the host kept from running: on a busy one
every rank is late by turns, and a rank that is always a little late decides few of the waits. Its
own work tells it apart. In one phase it takes longer than the median of the others in nearly every
step, while what the host does to a rank comes and goes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.analysis.step.pauses import ORIGINS
from commprof.stats.correlation import lag_one, worth

Floats = npt.NDArray[np.float64]

#: In this share of the steps the rank's phase exceeds the others' median ...
_OF_STEPS = 0.75
#: ... by this share of the step; and so does its work in all in half of the steps, so that no other
#: phase makes up for it.
_OF_STEP = 0.02
#: Of several such ranks one is named if its phase exceeds the others by so many times as much.
_CLEARLY = 2.0
_SIGNIFICANCE = 0.01


@dataclass(frozen=True)
class SlowRank:
    """The rank whose own work takes longer."""

    rank: int
    #: One of ``pauses.ORIGINS``: where it exceeds the others most.
    phase: str
    #: By this much in three of four steps, or more.
    excess_ns: float
    #: Sign test: chance of as many steps beyond the others' median by lot, for any rank and phase;
    #: steps that are alike count as fewer.
    p_value: float


def find_slow_rank(work_ns: Floats, step_ns: float) -> SlowRank | None:
    """Names the one rank that is slow, or nobody.

    Args:
        work_ns: ``[rank, origin, step]`` in the order of ``pauses.ORIGINS``, without waiting.
        step_ns: median step.
    """
    ranks, phases, steps = work_ns.shape
    if ranks < 2 or steps == 0:
        return None
    beyond = _beyond_the_others(work_ns)
    excess = np.quantile(beyond, 1 - _OF_STEPS, axis=2)
    phase = np.argmax(excess, axis=1)
    in_phase = excess[np.arange(ranks), phase]
    in_all = np.median(_beyond_the_others(work_ns.sum(axis=1)), axis=1)
    slow = np.where(np.minimum(in_phase, in_all) >= _OF_STEP * step_ns, in_phase, 0.0)
    rank = int(np.argmax(slow))
    if slow[rank] == 0 or slow[rank] < _CLEARLY * np.delete(slow, rank).max():
        return None
    p_value = min(1.0, ranks * phases * _sign_test(beyond[rank, phase[rank]], _OF_STEP * step_ns))
    if p_value > _SIGNIFICANCE:
        return None
    return SlowRank(rank, ORIGINS[int(phase[rank])], float(in_phase[rank]), p_value)


def _beyond_the_others(work_ns: Floats) -> Floats:
    """Of each rank, along the first axis, less the median of the others."""
    return np.stack(
        [
            work_ns[rank] - np.median(np.delete(work_ns, rank, axis=0), axis=0)
            for rank in range(len(work_ns))
        ]
    )


def _sign_test(beyond_ns: Floats, most_ns: float) -> float:
    """Chance of as many values above 0 by lot.

    Neighbours that are alike count as fewer, see :mod:`commprof.stats.correlation`; each value
    counts up to ``most_ns``, so that one that is always above 0 has none.
    """
    share = worth(lag_one(np.clip(beyond_ns, -most_ns, most_ns)))
    return _chance(int((beyond_ns > 0).sum() * share), int(len(beyond_ns) * share))


def _chance(more: int, steps: int) -> float:
    """Of at least so many heads in so many tosses."""
    logs = [
        math.lgamma(steps + 1) - math.lgamma(k + 1) - math.lgamma(steps - k + 1)
        for k in range(more, steps + 1)
    ]
    return sum(math.exp(log - steps * math.log(2)) for log in logs)
