"""The late rank of a recording whose steps are too few for a permutation test.

A recording of torch.profiler often holds two or three steps. In each step some rank is the last,
and with two ranks, the same one is last in two steps with a probability of one half.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from commprof.analysis.late.stragglers import (
    MOST_WAITING,
    SIGNIFICANCE,
    LateRank,
    enough_blocks,
    most_waited_for,
    waiting_ranks,
)
from commprof.analysis.step.rank_parts import PairWaits
from commprof.stats.outliers import student_tail

Floats = npt.NDArray[np.float64]


def enough_steps(waited_for_ns: Floats, by_waiting_ns: Floats | PairWaits) -> int:
    """Returns the least number of steps with which :func:`find_late_rank` can name a rank.

    The arguments are those of :func:`find_late_rank`. The number is for the most demanding test of
    that function, which shuffles only the rank that caused the most waiting and the ranks that wait
    for it.
    """
    rank = int(np.argmax(waited_for_ns.sum(axis=0)))
    return enough_blocks(1 + int(waiting_ranks(by_waiting_ns, rank).sum()))


def late_rank_of_few_steps(
    waited_for_ns: Floats,
    waited_ns: Floats,
    ranks: Sequence[int],
    step_ns: float,
    clock_error_ns: float,
    by_waiting_ns: Floats | PairWaits,
) -> LateRank | None:
    """Returns the late rank of steps that are too few for :func:`find_late_rank`; else None.

    The rank that caused most waiting is named if it caused at least 60 % of all waiting, if the
    mean wait is at least 2 % of the step, if the rank is late in each step, and if it waits less
    than the others by more than chance explains. The same time passes for all ranks, so a rank that
    waits less works longer by the same amount.

    Chance is measured by a two-way analysis of variance. If ranks are alike, their waiting varies
    from step to step equally for all ranks. Any other variation is chance; its spread is that of
    the residuals of all ranks and steps. A rank's mean difference from the others then follows
    Student's t distribution. The probability that any rank differs so much must be at most 1 %.

    Args:
        waited_for_ns: as for :func:`find_late_rank`.
        waited_ns: ``[recorded rank, step]``: how long each rank waited.
        ranks: global rank of each row of ``waited_ns``.
        step_ns: median step time.
        clock_error_ns: as for :func:`find_late_rank`.
        by_waiting_ns: as for :func:`find_late_rank`.
    """
    late = most_waited_for(waited_for_ns, step_ns, clock_error_ns, by_waiting_ns, MOST_WAITING)
    if late is None or late.late_steps < late.measured_steps or late.rank not in ranks:
        return None
    p_value = _chance_of_waiting_less(waited_ns, list(ranks).index(late.rank))
    return replace(late, p_value=p_value) if p_value <= SIGNIFICANCE else None


def _chance_of_waiting_less(waited_ns: Floats, row: int) -> float:
    """Returns the probability that any rank waits so much less than the others by chance.

    The result is 1.0 with fewer than two ranks or steps.
    """
    ranks, steps = waited_ns.shape
    if min(ranks, steps) < 2:
        return 1.0
    longer_ns = float((np.delete(waited_ns, row, axis=0).mean(axis=0) - waited_ns[row]).mean())
    of_rank, of_step = waited_ns.mean(axis=1, keepdims=True), waited_ns.mean(axis=0, keepdims=True)
    degrees = (ranks - 1) * (steps - 1)
    residual_ns = waited_ns - of_rank - of_step + waited_ns.mean()
    variance = float((residual_ns**2).sum()) / degrees * (1 + 1 / (ranks - 1)) / steps
    if not variance > 0:
        return 0.0 if longer_ns > 0 else 1.0
    return min(1.0, ranks * student_tail(longer_ns / math.sqrt(variance), degrees))
