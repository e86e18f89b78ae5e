"""Finds the late rank: the one rank that the others wait for more than chance explains.

Waiting shows which rank came last, but not why. Either the rank's own work takes longer, or the
host keeps the rank from running. On a busy host, each rank comes last in some steps. Waiting then
does not reveal a rank whose work always takes a little longer. Such a slow rank is recognised by
its work: one phase exceeds the median of the other ranks in at least three of four steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from commprof.analysis.step.exposure import CAUSES, HOST_PAUSE, NO_CORE, ORIGINS, TRANSFER, UNKNOWN
from commprof.analysis.step.rank_parts import PairWaits
from commprof.stats.rank_tests import lag_one, worth
from commprof.units import ns_to_ms, ns_to_s

Floats = npt.NDArray[np.float64]

#: A rank is slow only if one of its phases is too long in at least this fraction of the steps.
OF_STEPS = 0.75
#: A phase is too long if it exceeds the median of the other ranks by at least this fraction of the
#: step.
OF_STEP = 0.02
#: The slowest rank is named only if its excess is at least this many times the next largest excess.
_CLEARLY = 2.0
#: Significance level of the tests for a late rank and for a slow rank.
SIGNIFICANCE = 0.01
#: A cause is named if it explains at least this fraction of the waiting that a rank caused.
_MOST = 0.5


@dataclass(frozen=True)
class SlowRank:
    """A rank whose own work takes longer than the others'."""

    #: Global rank; in the result of :func:`find_slow_rank`, index among the compared ranks.
    rank: int
    #: One of ``exposure.ORIGINS``: the phase in which the rank exceeds the others most.
    phase: str
    #: In three of four steps, the phase exceeds the others' median by at least this time.
    excess_ns: float
    #: p-value of a sign test, corrected for the number of ranks and phases.
    p_value: float


def find_slow_rank(work_ns: Floats, step_ns: float) -> SlowRank | None:
    """Returns the one rank whose own work is slow; None if there is none, or more than one.

    Args:
        work_ns: ``[rank, origin, step]``: time of the rank's own work and pauses, in the order of
            ``exposure.ORIGINS``. Waiting for other ranks is not included.
        step_ns: median step time.
    """
    ranks, phases, steps = work_ns.shape
    if ranks < 2 or steps == 0:
        return None
    # One phase after the other, because a table of all phases of a long run is large.
    of_phases = (beyond_the_others(work_ns[:, number]) for number in range(phases))
    excess = np.stack([np.quantile(some, 1 - OF_STEPS, axis=1) for some in of_phases], axis=1)
    phase = np.argmax(excess, axis=1)
    in_phase = excess[np.arange(ranks), phase]
    # All phases together must be longer too, because a faster phase may make up for the slow one.
    in_all = np.median(beyond_the_others(work_ns.sum(axis=1)), axis=1)
    slow = np.where(np.minimum(in_phase, in_all) >= OF_STEP * step_ns, in_phase, 0.0)
    rank = int(np.argmax(slow))
    if slow[rank] == 0 or slow[rank] < _CLEARLY * np.delete(slow, rank).max():
        return None
    beyond = beyond_the_others(work_ns[:, phase[rank]])[rank]
    p_value = min(1.0, ranks * phases * _sign_test(beyond, OF_STEP * step_ns))
    if p_value > SIGNIFICANCE:
        return None
    return SlowRank(rank, ORIGINS[int(phase[rank])], float(in_phase[rank]), p_value)


def beyond_the_others(work_ns: Floats) -> Floats:
    """Returns each rank's values minus the others' median; the first axis is the rank.

    NaN if the value of any rank is NaN, or if there is only one rank.
    """
    others = len(work_ns) - 1
    if others < 1:
        return np.full(work_ns.shape, np.nan)
    ordered = np.sort(work_ns, axis=0)
    # When a rank's own value is left out, the values after it move down by one place.
    low, high = (
        np.where(work_ns <= ordered[place], ordered[place + 1], ordered[place])
        for place in ((others - 1) // 2, others // 2)
    )
    unknown = np.isnan(ordered[-1])
    beyond: Floats = np.where(unknown, np.nan, work_ns - (low + high) / 2)
    return beyond


def _sign_test(beyond_ns: Floats, most_ns: float) -> float:
    """Returns the p-value of a one-sided sign test that ``beyond_ns`` is mostly above 0.

    Correlated neighbours count as fewer values, see :mod:`commprof.stats.rank_tests`. Values are
    clipped to ±``most_ns`` to estimate this correlation.
    """
    share = worth(lag_one(np.clip(beyond_ns, -most_ns, most_ns)))
    return _chance_of_heads(int((beyond_ns > 0).sum() * share), int(len(beyond_ns) * share))


def _chance_of_heads(more: int, steps: int) -> float:
    """Returns the probability of at least ``more`` heads in ``steps`` tosses."""
    logs = [
        math.lgamma(steps + 1) - math.lgamma(k + 1) - math.lgamma(steps - k + 1)
        for k in range(more, steps + 1)
    ]
    return sum(math.exp(log - steps * math.log(2)) for log in logs)


#: A late rank causes at least this fraction of the waiting that is attributed to ranks, see
#: :func:`of_ranks`. This is not required of a rank that is named for its own work.
MOST_WAITING = 0.6
#: Significance level for a rank that is late in less than half of the steps.
_SIGNIFICANCE_NOW_AND_THEN = 0.001
_PERMUTATIONS = 2000
#: In runs with more steps than this, blocks of neighbouring steps are shuffled as wholes, to limit
#: the cost of the test.
_BLOCKS = 500
_SEED = 20240501
#: A rank counts as waiting if its wait is at least this fraction of the longest wait.
_WAITS = 0.1


@dataclass(frozen=True)
class LateRank:
    """The rank that the others wait for, the cost of this waiting, and its cause."""

    rank: int
    #: Mean time per step for which a waiting rank waits for this rank.
    wait_ns: float
    #: Waiting that this rank caused, divided by all waiting. Only the dividend leaves out waiting
    #: caused by a lack of cores.
    share: float
    #: Probability of such a late rank by chance. The test depends on why the rank is named.
    p_value: float
    #: Number of measured steps in which the mean wait for this rank was at least 2 % of the step.
    late_steps: int
    measured_steps: int
    #: Waiting that the rank caused in the measured steps, summed over the ranks that waited.
    cost_s: float
    #: Main cause of the waiting, one of ``exposure.CAUSES``; None if no cause explains half of it,
    #: or if the causes are unknown.
    phase: str | None = None
    #: Fraction of the waiting that the main cause explains. NaN if unknown, or if the rank is named
    #: for its own work.
    phase_share: float = math.nan
    #: ``SlowRank.excess_ns`` in ms; NaN if the rank is not named for its own work.
    slower_ms: float = math.nan
    #: Number of ranks that wait for this rank, see :func:`waiting_ranks`; 0 if not known.
    waiting_ranks: int = 0


def late_rank(
    caused_ns: Floats,
    by_waiting_ns: Floats | PairWaits,
    work_ns: Floats,
    ranks: Sequence[int],
    step_ns: float,
    clock_error_ns: float,
) -> LateRank | None:
    """Returns the late rank with the cause of its lateness; None if no rank is named.

    A rank may be named for the waiting that it causes, or for its own work; see the module's
    docstring.

    Args:
        caused_ns: ``[step, rank, cause]`` as in ``Breakdown``, summed over the ranks that waited.
        by_waiting_ns: as in :func:`find_late_rank`.
        work_ns: as in :func:`find_slow_rank`.
        ranks: global rank of each row of ``work_ns``.
        step_ns: median step time.
        clock_error_ns: as in :func:`find_late_rank`.
    """
    waited_for = of_ranks(caused_ns)
    late = find_late_rank(waited_for, step_ns, clock_error_ns, by_waiting_ns)
    if late is not None:
        late = with_cause(late, caused_ns)
    slow = find_slow_rank(work_ns, step_ns)
    if slow is not None:
        slow = replace(slow, rank=ranks[slow.rank])
    late = late_by_own_work(late, slow, waited_for, step_ns, by_waiting_ns)
    if late is None or _within_clock_error(late, clock_error_ns):
        return None
    # Waiting caused by a lack of cores is left out of ``waited_for``, but is a part of all waiting.
    return replace(late, share=late.share * float(waited_for.sum() / caused_ns.sum()))


def of_ranks(caused_ns: Floats) -> Floats:
    """Sums ``[step, rank, cause]`` over the causes; the result is ``[step, rank]``.

    Waiting with the cause ``exposure.NO_CORE`` is left out, because other load on a rank's cores
    causes this waiting.
    """
    kept: Floats = np.delete(caused_ns, CAUSES.index(NO_CORE), axis=2).sum(axis=2)
    return kept


def waiting_ranks(by_waiting_ns: Floats | PairWaits, rank: int) -> npt.NDArray[np.bool_]:
    """Returns a mask of the ranks that wait for ``rank``.

    Args:
        by_waiting_ns: as in :func:`find_late_rank`.
        rank: global rank.

    Ranks that wait less than a tenth as long as the rank with the longest wait are left out: such
    waiting occurs by chance.
    """
    mask = are_waiting(by_waiting_ns[:, rank])
    # A rank may wait for a rank that it made late. It then causes its own waiting.
    mask[rank] = False
    return mask


def are_waiting(waited_ns: Floats) -> npt.NDArray[np.bool_]:
    """Returns a mask of the ranks whose wait is at least a tenth of the longest wait.

    ``waited_ns``: waiting time of each rank.
    """
    mask: npt.NDArray[np.bool_] = (waited_ns > 0) & (waited_ns >= _WAITS * waited_ns.max())
    return mask


def find_late_rank(
    waited_for_ns: Floats,
    step_ns: float,
    clock_error_ns: float = 0.0,
    by_waiting_ns: Floats | PairWaits | None = None,
    least_share: float = MOST_WAITING,
) -> LateRank | None:
    """Returns the rank that the others wait for more than chance explains; else None.

    Args:
        waited_for_ns: ``[step, rank]``: waiting that the rank caused, summed over the ranks that
            waited.
        step_ns: median step time.
        clock_error_ns: bound on the error of a rank's clock. The mean wait must exceed twice this
            bound, because the errors of two clocks may add up. With NaN no rank is named.
        by_waiting_ns: the same waiting as ``[waiting rank, rank]``, summed over the steps. Both
            axes are global ranks. None if each rank makes all other ranks wait equally.
        least_share: smallest fraction of the waiting that a late rank causes.

    The mean wait must be at least 2 % of the step. A permutation test shuffles the ranks within
    each step. It gives the probability that by chance some rank causes this much waiting. This
    probability must be at most 1 %, or 0.1 % if the rank is late in less than half of the steps.

    Correlated neighbouring steps are shuffled together (Bayley and Hammersley 1946), because a rank
    may be late in one long series of steps.

    If only some ranks wait for the late rank, the test is repeated with the late rank and these
    ranks only. The larger probability counts. Of two ranks that only wait for each other, one is
    last by chance, however many other ranks the job has.
    """
    late = most_waited_for(waited_for_ns, step_ns, clock_error_ns, by_waiting_ns, least_share)
    if late is None:
        return None
    steps, ranks = waited_for_ns.shape
    caused_ns = float(waited_for_ns[:, late.rank].sum())
    blocks = _independent_blocks(waited_for_ns, late, step_ns)
    p_value = _chance(blocks, caused_ns)
    if by_waiting_ns is not None and late.waiting_ranks < ranks - 1:
        among = waiting_ranks(by_waiting_ns, late.rank)
        among[late.rank] = True
        p_value = max(p_value, _chance(blocks[:, among], caused_ns))
    mostly = late.late_steps >= steps / 2
    limit = SIGNIFICANCE if mostly else _SIGNIFICANCE_NOW_AND_THEN
    return replace(late, p_value=p_value) if p_value <= limit else None


def too_few_blocks(waited_for_ns: Floats, late: LateRank, step_ns: float) -> bool:
    """True if there are too few blocks of steps for the test of :func:`find_late_rank`.

    Correlated neighbouring steps count as one block.

    Args:
        waited_for_ns: as in :func:`find_late_rank`.
        late: result of :func:`most_waited_for`.
        step_ns: median step time.
    """
    blocks = len(_independent_blocks(waited_for_ns, late, step_ns))
    return blocks < enough_blocks(1 + late.waiting_ranks)


def enough_blocks(shuffled: int) -> int:
    """Returns the least number of steps or blocks with which a rank can be named.

    By chance, one of ``shuffled`` ranks is the last in all blocks with the probability
    ``shuffled ** (1 - blocks)``. This probability must not exceed ``SIGNIFICANCE``.
    """
    return 1 + math.ceil(math.log(1 / SIGNIFICANCE) / math.log(max(2, shuffled)))


def most_waited_for(
    waited_for_ns: Floats,
    step_ns: float,
    clock_error_ns: float,
    by_waiting_ns: Floats | PairWaits | None,
    least_share: float,
) -> LateRank | None:
    """Returns the rank that caused the most waiting, without testing whether this is chance.

    None if the rank caused less than ``least_share`` of the waiting, if the mean wait is less than
    2 % of the step, or if clock errors may explain the waiting.
    """
    steps, ranks = waited_for_ns.shape
    if ranks < 2 or steps == 0 or float(waited_for_ns.sum()) <= 0:
        return None
    rank = int(np.argmax(waited_for_ns.sum(axis=0)))
    late = _late_rank(rank, waited_for_ns, step_ns, math.nan, by_waiting_ns)
    if late.share < least_share or late.wait_ns < OF_STEP * step_ns:
        return None
    return None if _within_clock_error(late, clock_error_ns) else late


def _within_clock_error(late: LateRank, clock_error_ns: float) -> bool:
    is_within = clock_error_ns > 0 and late.wait_ns <= 2 * clock_error_ns
    return is_within or math.isnan(clock_error_ns)


def late_by_own_work(
    late: LateRank | None,
    slow: SlowRank | None,
    waited_for_ns: Floats,
    step_ns: float,
    by_waiting_ns: Floats | PairWaits | None = None,
) -> LateRank | None:
    """Confirms the late rank, or replaces it by the slow rank.

    Args:
        late: result of :func:`find_late_rank`, with the cause added by :func:`with_cause`.
        slow: result of :func:`find_slow_rank`, with the global rank.
        waited_for_ns: as in :func:`find_late_rank`.
        step_ns: median step time.
        by_waiting_ns: as in :func:`find_late_rank`.

    Returns ``late`` unchanged if one cause explains at least half of the waiting for this rank, or
    if no cause is known. Otherwise the host may have caused the delay. The slow rank is then
    returned, with the phase in which its own work takes longer. The result is None if there is no
    slow rank, or if the slow rank causes little waiting.
    """
    if late is not None and (late.phase is not None or math.isnan(late.phase_share)):
        return late
    if slow is None or float(waited_for_ns[:, slow.rank].sum()) <= 0:
        return None
    if late is None or late.rank != slow.rank:
        late = _late_rank(slow.rank, waited_for_ns, step_ns, slow.p_value, by_waiting_ns)
    # The share alone does not decide: in a pipeline, most of the waiting is the bubble.
    if late.wait_ns < OF_STEP * step_ns and late.share < 1 / waited_for_ns.shape[1]:
        return None
    return replace(late, phase=slow.phase, phase_share=math.nan, slower_ms=ns_to_ms(slow.excess_ns))


def with_cause(late: LateRank, caused_ns: Floats) -> LateRank:
    """Adds the main cause of the waiting to the late rank.

    Nothing is added if less than half of the waiting has a known cause.

    Args:
        late: the rank and the cost of waiting for it.
        caused_ns: ``[step, rank, cause]`` as in ``Breakdown``, summed over the ranks that waited.
    """
    causes = caused_ns[:, late.rank].sum(axis=0)
    causes[CAUSES.index(NO_CORE)] = 0.0
    known = causes[: CAUSES.index(UNKNOWN)]
    if not known.sum() > 0 or known.sum() < _MOST * causes.sum():
        return late
    best = int(np.argmax(known))
    share = float(known[best] / causes.sum())
    return replace(late, phase=CAUSES[best] if share >= _MOST else None, phase_share=share)


def fell_behind(phase: str | None) -> str:
    """Returns where a rank fell behind, as the end of a sentence; empty if unknown.

    ``phase`` is ``LateRank.phase``.
    """
    if phase is None:
        return ""
    if phase == HOST_PAUSE:
        return "because its process did not run (host pause)"
    if phase == TRANSFER:
        return "in transfers with other ranks"
    return "outside of all phases" if phase == "other" else f"in the {phase} phase"


def each_waits(waiting: int, world_size: int) -> str:
    """Returns subject and verb: "each of the other ranks waits", "one other rank waits", ...

    ``waiting`` is ``LateRank.waiting_ranks``.
    """
    who, several = who_waits(waiting, world_size)
    return f"each of {who} waits" if several else f"{who} waits"


def who_waits(waiting: int, world_size: int, late: int = 1) -> tuple[str, bool]:
    """Returns who waits, such as "the other ranks" or "one other rank", and True for a plural.

    Args:
        waiting: ``LateRank.waiting_ranks``.
        world_size: number of ranks.
        late: number of ranks that are late.
    """
    if not 0 < waiting < world_size - late:
        return "the other ranks", True
    return ("one other rank", False) if waiting == 1 else (f"{waiting} other ranks", True)


def _late_rank(
    rank: int,
    waited_for_ns: Floats,
    step_ns: float,
    p_value: float,
    by_waiting_ns: Floats | PairWaits | None,
) -> LateRank:
    steps, ranks = waited_for_ns.shape
    caused_ns, waiting, theirs = waited_for_ns[:, rank], ranks - 1, 1.0
    if by_waiting_ns is not None:
        mask = waiting_ranks(by_waiting_ns, rank)
        waiting = int(mask.sum())
        theirs = float(by_waiting_ns[mask, rank].sum() / by_waiting_ns[:, rank].sum())
    mean_ns = caused_ns * theirs / waiting  # per step
    return LateRank(
        rank=rank,
        wait_ns=float(mean_ns.sum()) / steps,
        share=float(caused_ns.sum() / waited_for_ns.sum()),
        p_value=p_value,
        late_steps=int((mean_ns >= OF_STEP * step_ns).sum()),
        measured_steps=steps,
        cost_s=ns_to_s(float(caused_ns.sum())),
        waiting_ranks=waiting,
    )


def _independent_blocks(waited_for_ns: Floats, late: LateRank, step_ns: float) -> Floats:
    """Adds up neighbouring steps to blocks that are nearly independent."""
    alike = _steps_alike(waited_for_ns, late.rank, OF_STEP * step_ns * late.waiting_ranks)
    return _blocks(waited_for_ns, alike)


def _steps_alike(waited_for_ns: npt.NDArray[np.float64], rank: int, late_ns: float) -> int:
    """Returns how many consecutive steps count as one independent step.

    The result follows from the lag-1 correlation of a difference: the waiting that ``rank`` caused
    minus the most waiting that any other rank caused, clipped to ±``late_ns``. If ``rank`` is late
    in all steps, the clipped difference is constant, and counts as uncorrelated.
    """
    others = np.delete(waited_for_ns, rank, axis=1).max(axis=1)
    clipped = np.clip(waited_for_ns[:, rank] - others, -late_ns, late_ns)
    return math.ceil(1 / worth(lag_one(clipped)))


def _blocks(waited_for_ns: npt.NDArray[np.float64], alike: int) -> npt.NDArray[np.float64]:
    """Adds up blocks of about ``alike`` neighbouring steps; returns at most ``_BLOCKS`` rows."""
    steps = len(waited_for_ns)
    count = min(_BLOCKS, math.ceil(steps / alike))
    first = np.linspace(0, steps, count, endpoint=False).astype(np.int64)
    return np.add.reduceat(waited_for_ns, first, axis=0)


def _chance(waited_for_ns: npt.NDArray[np.float64], most_ns: float) -> float:
    """Returns the probability that by chance some rank causes at least ``most_ns`` of waiting.

    This is a permutation test: each permutation assigns the values of every row to the ranks at
    random.
    """
    random = np.random.default_rng(_SEED)
    exceeded = 0
    if _is_beyond(waited_for_ns, most_ns * (1 - 1e-9)):
        return 1 / (_PERMUTATIONS + 1)
    for _ in range(_PERMUTATIONS):
        shuffled = random.permuted(waited_for_ns, axis=1)
        exceeded += bool(shuffled.sum(axis=0).max() >= most_ns * (1 - 1e-9))
    return (exceeded + 1) / (_PERMUTATIONS + 1)


#: Values of t for which :func:`_is_beyond` computes Chernoff's bound; unit: 1 / largest waiting.
_EXPONENTS = 2.0 ** np.arange(-2, 8)
#: No permutation is tried if Chernoff's bound on the probability is below this.
_NEVER = 1e-12


def _is_beyond(waited_for_ns: Floats, most_ns: float) -> bool:
    """True if practically no permutation of :func:`_chance` gives one rank this much waiting.

    The sum of one rank consists of one value from each row. By Chernoff's bound, this sum reaches
    ``most_ns`` at most with the probability prod(mean(exp(t row))) / exp(t most_ns), for any t > 0.
    """
    largest, ranks = float(waited_for_ns.max(initial=0.0)), waited_for_ns.shape[1]
    if not largest > 0:
        return False
    values, most = waited_for_ns / largest, most_ns / largest
    logs = [
        float(np.log(np.exp(t * values).mean(axis=1)).sum()) - t * most for t in _EXPONENTS.tolist()
    ]
    return min(logs) + math.log(ranks * _PERMUTATIONS) < math.log(_NEVER)
