"""Intervals of a typical value over few rounds, some of which the machine may have disturbed."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from commprof.analysis.intervals import Interval

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

    Typical is the Hodges-Lehmann estimate of the logarithms, see ``center``; its interval is
    Student's, see ``_student``.
    """
    if len(above) < MIN_ROUNDS:
        return None
    logs = np.log(above) - np.log(below)
    found = _student(float(center(logs)), logs, confidence)
    return Interval(*(math.exp(x) for x in (found.value, found.low, found.high)))


def typical(values: Floats, confidence: float = CONFIDENCE) -> Interval | None:
    """Typical value of a round, as ``ratio`` estimates it; in the unit of ``values``."""
    return ratio(values, np.ones_like(values), confidence)


def center(values: Floats) -> Floats:
    """Median of the means of all pairs, each value with itself too, along the last axis.

    Nearly as efficient as the mean, and not moved far by a quarter of the values (Hodges and
    Lehmann, Estimates of Location Based on Rank Tests, Annals of Mathematical Statistics 34:2,
    1963).
    """
    first, second = np.triu_indices(values.shape[-1])
    pairs = (values[..., first] + values[..., second]) / 2
    return np.asarray(np.median(pairs, axis=-1), dtype=np.float64)


def mean(values: Floats, confidence: float = CONFIDENCE) -> Interval | None:
    """Mean with Student's interval; None with fewer than MIN_ROUNDS values or a NaN."""
    if len(values) < MIN_ROUNDS or not np.isfinite(values).all():
        return None
    return _student(float(values.mean()), values, confidence)


def _student(value: float, values: Floats, confidence: float) -> Interval:
    """Around an estimate of the values' center: t times the mean's standard error.

    Percentiles of resamples cannot leave the range of the values, and so miss the truth far more
    often than stated where there are 3 or 4. For the Hodges-Lehmann estimate the mean's error is
    right for normal values, and too wide where some are disturbed.
    """
    t = student_t_quantile((1 + confidence) / 2, len(values) - 1)
    half = t * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Interval(value, value - half, value + half)


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


def student_t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's distribution, by bisection on its integrated density.

    Args:
        probability: above 0.5 and below 1.
        degrees: of freedom, 1 or more.
    """
    low, high = 0.0, 1.0
    while _student_t_cdf(high, degrees) < probability:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        if _student_t_cdf(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _student_t_cdf(t: float, degrees: int) -> float:
    """With t = sqrt(n) tan(a) the density integrates as cos(a)^(n-1): smooth, by Simpson's rule."""
    scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - math.log(math.pi) / 2
    angle = np.linspace(0.0, math.atan(t / math.sqrt(degrees)), 2001)
    values = np.cos(angle) ** (degrees - 1)
    step = angle[1] - angle[0]
    area = step / 3 * (values[0] + values[-1] + 4 * values[1::2].sum() + 2 * values[2:-1:2].sum())
    return 0.5 + math.exp(scale) * float(area)
