"""Intervals of a typical value over few rounds, some of which the machine may have disturbed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from commprof.stats.intervals import (
    Interval,
    paired_ratio,
    student_interval,
)

Floats = npt.NDArray[np.float64]

#: With fewer rounds nothing is concluded.
MIN_ROUNDS = 3
CONFIDENCE = 0.95


def ratio(above: Floats, below: Floats, confidence: float = CONFIDENCE) -> Interval | None:
    """Typical ``above / below`` of a round, with its interval; None below MIN_ROUNDS.

    See ``intervals.paired_ratio``.
    """
    return None if len(above) < MIN_ROUNDS else paired_ratio(above, below, confidence)


def typical(values: Floats, confidence: float = CONFIDENCE) -> Interval | None:
    """Typical value of a round, as ``ratio`` estimates it; in the unit of ``values``."""
    return ratio(values, np.ones_like(values), confidence)


def mean(values: Floats, confidence: float = CONFIDENCE) -> Interval | None:
    """Mean with Student's interval; None with fewer than MIN_ROUNDS values or a NaN."""
    if len(values) < MIN_ROUNDS or not np.isfinite(values).all():
        return None
    return student_interval(float(values.mean()), values, confidence)
