"""Finds the late rank of a recording whose steps are too few for a permutation test.

A recording of torch.profiler often holds only two or three steps. In each step, some rank is the
last. If there are two ranks, the same rank is last in two steps with a probability of one half.
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

    The arguments are those of :func:`find_late_rank`.
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
    """Returns the late rank of a few steps; None if no rank is named.

    The rank that caused most waiting is named if all of these conditions hold:

    - The rank caused at least 60 % of the waiting in ``waited_for_ns``.
    - The mean wait is at least 2 % of the step, and more than twice ``clock_error_ns``.
    - The rank is late in each step.
    - The rank waits less than the others, by more than chance explains. A step takes the same time
      on all ranks, so a rank that waits less works longer.

    Chance is measured by a two-way analysis of variance over ranks and steps. A rank's mean
    difference from the others is compared with the residuals, using Student's t distribution. The
    probability that any rank differs so much must be at most 1 %.

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
    """Returns the probability that by chance some rank waits so much less than the others."""
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
