"""Which rank the others wait for, if it is one and not chance.

Which rank takes longer for its own work than the others, step after step.

Waiting shows who came last, and with that also whom the host kept from running: on a busy one
every rank is late by turns, and a rank that is always a little late decides few of the waits. Its
own work tells it apart. In one phase it takes longer than the median of the others in nearly every
step, while what the host does to a rank comes and goes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from commprof.analysis.step.exposure import CAUSES, HOST_PAUSE, NO_CORE, ORIGINS, TRANSFER, UNKNOWN
from commprof.stats.rank_tests import lag_one, worth
from commprof.units import ns_to_ms, ns_to_s

Floats = npt.NDArray[np.float64]

#: In this share of the steps the rank's phase exceeds the others' median ...
_OF_STEPS = 0.75
#: ... by this share of the step; and so does its work in all in half of the steps, so that no other
#: phase makes up for it.
_OF_STEP = 0.02
#: Of several such ranks one is named if its phase exceeds the others by so many times as much.
_CLEARLY = 2.0
_SIGNIFICANCE = 0.01
#: A cause is named if it explains at least this part of the waiting that a rank caused.
_MOST = 0.5


@dataclass(frozen=True)
class SlowRank:
    """A rank whose own work takes longer than the others'."""

    rank: int
    #: One of ``exposure.ORIGINS``: where it exceeds the others most.
    phase: str
    #: By this much in three of four steps, or more.
    excess_ns: float
    #: Sign test: chance of as many steps beyond the others' median by lot, for any rank and phase;
    #: steps that are alike count as fewer.
    p_value: float


def find_slow_rank(work_ns: Floats, step_ns: float) -> SlowRank | None:
    """Names the one rank that is slow, or nobody.

    Args:
        work_ns: ``[rank, origin, step]`` in the order of ``exposure.ORIGINS``, without waiting.
        step_ns: median step.
    """
    ranks, phases, steps = work_ns.shape
    if ranks < 2 or steps == 0:
        return None
    beyond = beyond_the_others(work_ns)
    excess = np.quantile(beyond, 1 - _OF_STEPS, axis=2)
    phase = np.argmax(excess, axis=1)
    in_phase = excess[np.arange(ranks), phase]
    in_all = np.median(beyond_the_others(work_ns.sum(axis=1)), axis=1)
    slow = np.where(np.minimum(in_phase, in_all) >= _OF_STEP * step_ns, in_phase, 0.0)
    rank = int(np.argmax(slow))
    if slow[rank] == 0 or slow[rank] < _CLEARLY * np.delete(slow, rank).max():
        return None
    p_value = min(1.0, ranks * phases * _sign_test(beyond[rank, phase[rank]], _OF_STEP * step_ns))
    if p_value > _SIGNIFICANCE:
        return None
    return SlowRank(rank, ORIGINS[int(phase[rank])], float(in_phase[rank]), p_value)


def beyond_the_others(work_ns: Floats) -> Floats:
    """Each rank's values, along the first axis, less the median of the others."""
    return np.stack(
        [
            work_ns[rank] - np.median(np.delete(work_ns, rank, axis=0), axis=0)
            for rank in range(len(work_ns))
        ]
    )


def _sign_test(beyond_ns: Floats, most_ns: float) -> float:
    """Chance of as many values above 0 by lot.

    Neighbours that are alike count as fewer, see :mod:`commprof.stats.rank_tests`; each value
    counts up to ``most_ns``, so that one that is always above 0 has none.
    """
    share = worth(lag_one(np.clip(beyond_ns, -most_ns, most_ns)))
    return _chance_of_heads(int((beyond_ns > 0).sum() * share), int(len(beyond_ns) * share))


def _chance_of_heads(more: int, steps: int) -> float:
    """Chance of at least ``more`` heads in ``steps`` tosses."""
    logs = [
        math.lgamma(steps + 1) - math.lgamma(k + 1) - math.lgamma(steps - k + 1)
        for k in range(more, steps + 1)
    ]
    return sum(math.exp(log - steps * math.log(2)) for log in logs)


#: The named rank caused at least this share of all waiting ...
_SHARE = 0.6
#: The same for a rank that is late in less than half of the steps.
_SIGNIFICANCE_NOW_AND_THEN = 0.001
_PERMUTATIONS = 2000
#: In a longer run neighbouring steps are relabelled together, so that the test stays cheap.
_BLOCKS = 500
_SEED = 20240501


@dataclass(frozen=True)
class LateRank:
    """The rank that the others wait for, with what that costs and why."""

    rank: int
    #: Mean waiting per step and waiting rank that it caused.
    wait_ns: float
    #: Of all waiting for late ranks.
    share: float
    #: Chance of such a concentration if each step's late rank were drawn by lot; for a rank that
    #: is named for its own work, ``SlowRank.p_value``. NaN of too few steps to test.
    p_value: float
    #: Measured steps in which it cost each of the others 2 % of the step, on average over them.
    late_steps: int
    measured_steps: int
    #: Waiting that it caused in the measured steps, summed over the ranks that waited.
    cost_s: float
    #: What most of the waiting for it comes from, of ``exposure.CAUSES``; None if nothing explains
    #: half of it, or if that is not known.
    phase: str | None = None
    #: Part of the waiting caused that this one explains, or where none is named the one that
    #: explains most; NaN if not known, or if the rank is named for its own work.
    phase_share: float = math.nan
    #: Of a rank that is named for its own work: ``phase`` takes it this much longer than the median
    #: of the others, or more, in three of four steps; else NaN.
    slower_ms: float = math.nan


def of_ranks(caused_ns: Floats) -> Floats:
    """Reduces ``[step, rank, cause]`` to ``[step, rank]``: the waiting that ranks answer for.

    What began as run delay is left out: whatever else runs on a rank's cores causes it.
    """
    kept: Floats = np.delete(caused_ns, CAUSES.index(NO_CORE), axis=2).sum(axis=2)
    return kept


def find_late_rank(
    waited_for_ns: npt.NDArray[np.float64], step_ns: float, clock_error_ns: float = 0.0
) -> LateRank | None:
    """Names the late rank, or nobody.

    Args:
        waited_for_ns: ``[step, culprit]``, summed over the ranks that waited.
        step_ns: median step.
        clock_error_ns: bound on the error of a rank's clock. Two clocks that are off by it the
            other way round make one rank look late by twice as much, so what is not more than
            that names nobody. With NaN nobody is named.

    The rank with the most waiting caused is named if its share and its cost are material
    and a permutation test (ranks relabelled within each step) finds less than one chance in
    a hundred that lots would have concentrated the waiting so much; in a thousand, if the rank is
    late in less than half of the steps. Where the rank is late for many
    steps on end and then no more, as one is whose core another process takes for a while, as many
    neighbouring steps are relabelled together as are alike (Bayley and Hammersley 1946).
    """
    rank = _most_waited_for(waited_for_ns, step_ns, clock_error_ns)
    if rank is None:
        return None
    steps, ranks = waited_for_ns.shape
    caused = waited_for_ns.sum(axis=0)
    alike = _steps_alike(waited_for_ns, rank, _OF_STEP * step_ns * (ranks - 1))
    p_value = _chance(_blocks(waited_for_ns, alike), float(caused[rank]))
    late = _late_rank(rank, waited_for_ns, step_ns, p_value)
    mostly = late.late_steps >= steps / 2
    return late if p_value <= (_SIGNIFICANCE if mostly else _SIGNIFICANCE_NOW_AND_THEN) else None


def few_steps(waited_for_ns: npt.NDArray[np.float64]) -> bool:
    """True if no test can tell from so few steps that a rank is late by more than chance."""
    steps, ranks = waited_for_ns.shape
    return float(max(ranks, 1)) ** (1 - steps) > _SIGNIFICANCE


def late_rank_of_few_steps(
    waited_for_ns: npt.NDArray[np.float64], step_ns: float, clock_error_ns: float = 0.0
) -> LateRank | None:
    """Names the rank that caused most of the waiting in just these steps, or nobody.

    Args as for :func:`find_late_rank`. Nothing is said of other steps: ``p_value`` is NaN.
    """
    rank = _most_waited_for(waited_for_ns, step_ns, clock_error_ns)
    return None if rank is None else _late_rank(rank, waited_for_ns, step_ns, math.nan)


def _most_waited_for(
    waited_for_ns: npt.NDArray[np.float64], step_ns: float, clock_error_ns: float
) -> int | None:
    """The rank with the most waiting caused, if its share and its cost are material."""
    steps, ranks = waited_for_ns.shape
    total = float(waited_for_ns.sum())
    if ranks < 2 or steps == 0 or total <= 0:
        return None
    caused = waited_for_ns.sum(axis=0)
    rank = int(np.argmax(caused))
    wait_ns = float(caused[rank]) / steps / (ranks - 1)
    if float(caused[rank]) / total < _SHARE or wait_ns < _OF_STEP * step_ns:
        return None
    if math.isnan(clock_error_ns) or (clock_error_ns > 0 and wait_ns <= 2 * clock_error_ns):
        return None
    return rank


def late_by_own_work(
    late: LateRank | None,
    slow: SlowRank | None,
    waited_for_ns: npt.NDArray[np.float64],
    step_ns: float,
) -> LateRank | None:
    """Finds the late rank in the light of the ranks' own work.

    Args:
        late: what :func:`find_late_rank` found, with what its lateness came from.
        slow: what ``find_slow_rank`` found.
        waited_for_ns: as there.
        step_ns: median step.

    Where nothing explains half of the waiting, the host held the rank up and not its own work;
    it is then named only if that work takes longer too. A slow rank that the others' waiting does
    not show, because the host holds them up by turns, is named for its work.
    """
    if late is not None and (late.phase is not None or math.isnan(late.phase_share)):
        return late
    if slow is None or float(waited_for_ns[:, slow.rank].sum()) <= 0:
        return None
    if late is None or late.rank != slow.rank:
        late = _late_rank(slow.rank, waited_for_ns, step_ns, slow.p_value)
    return replace(late, phase=slow.phase, phase_share=math.nan, slower_ms=ns_to_ms(slow.excess_ns))


def with_cause(late: LateRank, caused_ns: Floats) -> LateRank:
    """Adds to a late rank where its lateness came from, where that can be told.

    Args:
        late: the rank and what it cost.
        caused_ns: ``[step, rank, cause]`` as in ``Breakdown``, summed over the ranks that waited.
    """
    known = caused_ns[:, late.rank, : CAUSES.index(UNKNOWN)].sum(axis=0)
    known[CAUSES.index(NO_CORE)] = 0.0
    if not known.sum() > 0:
        return late
    best = int(np.argmax(known))
    share = float(known[best] / known.sum())
    return replace(late, phase=CAUSES[best] if share >= _MOST else None, phase_share=share)


def fell_behind(late: LateRank) -> str:
    """Says where the rank fell behind, as the end of a sentence; empty where that is not known."""
    if late.phase is None:
        return ""
    if late.phase == HOST_PAUSE:
        return "because its process did not run (host pause)"
    if late.phase == TRANSFER:
        return "in transfers with other ranks"
    return "outside of all phases" if late.phase == "other" else f"in the {late.phase} phase"


def _late_rank(
    rank: int, waited_for_ns: npt.NDArray[np.float64], step_ns: float, p_value: float
) -> LateRank:
    steps, ranks = waited_for_ns.shape
    caused = float(waited_for_ns[:, rank].sum())
    late_steps = int((waited_for_ns[:, rank] >= _OF_STEP * step_ns * (ranks - 1)).sum())
    return LateRank(
        rank=rank,
        wait_ns=caused / steps / (ranks - 1),
        share=caused / float(waited_for_ns.sum()),
        p_value=p_value,
        late_steps=late_steps,
        measured_steps=steps,
        cost_s=ns_to_s(caused),
    )


def _steps_alike(waited_for_ns: npt.NDArray[np.float64], rank: int, late_ns: float) -> int:
    """So many steps in a row say as much of who is late as one.

    r is the lag-1 correlation of the rank's lateness beyond the others', which counts up to
    ``late_ns`` a step: a rank that is late throughout is late by the same, and has none.
    """
    others = np.delete(waited_for_ns, rank, axis=1).max(axis=1)
    clipped = np.clip(waited_for_ns[:, rank] - others, -late_ns, late_ns)
    return math.ceil(1 / worth(lag_one(clipped)))


def _blocks(waited_for_ns: npt.NDArray[np.float64], alike: int) -> npt.NDArray[np.float64]:
    """Sums over ``alike`` neighbouring steps or more, so that there are at most ``_BLOCKS``.

    If each step's labels were drawn by lot, so were those of whole blocks.
    """
    steps = len(waited_for_ns)
    count = min(_BLOCKS, math.ceil(steps / alike))
    first = np.linspace(0, steps, count, endpoint=False).astype(np.int64)
    return np.add.reduceat(waited_for_ns, first, axis=0)


def _chance(waited_for_ns: npt.NDArray[np.float64], most_ns: float) -> float:
    """How often relabelling the ranks within each row concentrates as much on one rank."""
    random = np.random.default_rng(_SEED)
    exceeded = 0
    for _ in range(_PERMUTATIONS):
        shuffled = random.permuted(waited_for_ns, axis=1)
        exceeded += bool(shuffled.sum(axis=0).max() >= most_ns * (1 - 1e-9))
    return (exceeded + 1) / (_PERMUTATIONS + 1)
