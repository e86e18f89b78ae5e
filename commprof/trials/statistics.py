"""Intervals of a typical value over few rounds, some of which the machine may have disturbed."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from commprof.analysis.intervals import (
    Interval,
    paired_ratio,
    student_interval,
    student_t_quantile,
)

Floats = npt.NDArray[np.float64]

#: With fewer rounds nothing is concluded.
MIN_ROUNDS = 3
CONFIDENCE = 0.95
_RESAMPLES = 10_000
_SEED = 20261101


@lru_cache(maxsize=8)
def resamples(count: int) -> npt.NDArray[np.int64]:
    """Rounds drawn with replacement, ``[resample, round]``: the same for every figure."""
    draw = np.random.default_rng(_SEED)
    return draw.integers(0, count, size=(_RESAMPLES, count))


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


def interval_of(value: float, drawn: Floats, count: int, confidence: float) -> Interval:
    """The interval of what has no simple standard error, from the statistics of resamples.

    Plain percentiles are too narrow for few values: they miss the factor n / (n - 1) of the
    variance and Student's tails. The tail is therefore ``Phi(-sqrt(n / (n - 1)) * t)``, with t
    Student's quantile for n - 1 degrees of freedom (Hesterberg, What Teachers Should Know About
    the Bootstrap, The American Statistician 69:4, 2015). As they cannot leave the values' range
    either, the interval reaches at least t of the resamples' own standard errors, with the same
    factor, as long as all of them are finite.
    """
    t = student_t_quantile((1 + confidence) / 2, count - 1)
    widened = math.sqrt(count / (count - 1))
    tail = NormalDist().cdf(-widened * t)
    ordered = np.sort(drawn)
    at = tail * (len(ordered) - 1)
    low = float(ordered[math.floor(at)])
    high = float(ordered[len(ordered) - 1 - math.floor(at)])
    reach = t * widened * float(drawn.std()) if np.isfinite(drawn).all() else 0.0
    return Interval(value, min(low, value - reach), max(high, value + reach))
