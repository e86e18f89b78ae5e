"""Medians, ratios and spreads of measured values, with confidence intervals.

The machine may have disturbed some rounds of a trial. Typical values and ratios of rounds are
therefore robust estimates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

#: Standard deviation of a normal distribution, divided by its median absolute deviation (Iglewicz
#: and Hoaglin, How to Detect and Handle Outliers, 1993).
_DEVIATIONS_PER_MAD = 1.4826


def robust_deviation(
    values: Sequence[float] | npt.NDArray[np.float64], about: float | None = None
) -> float:
    """Returns the median absolute deviation, scaled to the standard deviation of normal values.

    Args:
        values: one value or more.
        about: center of the deviations; None for the median.
    """
    found = np.asarray(values, np.float64)
    center = float(np.median(found)) if about is None else about
    return _DEVIATIONS_PER_MAD * float(np.median(np.abs(found - center)))


Floats = npt.NDArray[np.float64]

_RESAMPLES = 2000
#: Bootstrap samples are averaged in this many parts. The values of one part fit into a processor's
#: cache.
_PARTS = 40
_ROUND_RESAMPLES = 10_000
_ROUND_SEED = 20261101
_SEED = 20240501
#: Smallest number of values for which the signed-rank test's interval can reach 95 %.
_LEAST_RANKED = 6
#: Largest number of values for which the signed-rank test counts all assignments of signs.
_COUNTED = 50
#: Largest number of rows from which a bootstrap of means draws.
_BLOCKS = 500


@dataclass(frozen=True)
class Interval:
    """A value with its confidence interval, of 95 % unless stated otherwise."""

    value: float
    low: float
    high: float

    def contains(self, x: float) -> bool:
        """True if ``x`` is in the interval."""
        return self.low <= x <= self.high


def ratio_of_medians(above: Floats, below: Floats, independent_share: float = 1.0) -> Interval:
    """Returns ``median(above) / median(below)`` with a percentile bootstrap interval.

    Args:
        above: values of the numerator.
        below: values of the denominator.
        independent_share: effective sample size divided by the number of values; below 1 if
            neighbouring values are correlated. A share below 1 widens the interval, if its bounds
            are positive and finite.

    Raises:
        ValueError: one of the samples is empty.
    """
    if len(above) == 0 or len(below) == 0:
        raise ValueError("a ratio cannot be computed: a sample is empty")
    random = np.random.default_rng(_SEED)
    ratios = _resampled_medians(above, random) / _resampled_medians(below, random)
    value = float(np.median(above) / np.median(below))
    low, high = percentile_interval(ratios).tolist()
    if independent_share < 1 and low > 0 and math.isfinite(high):
        wider = 1 / math.sqrt(independent_share)
        low, high = (value * (bound / value) ** wider for bound in (low, high))
    return Interval(value, low, high)


def mean_interval(values: Floats) -> Interval:
    """Returns the mean with its percentile bootstrap interval.

    Raises:
        ValueError: there are no values.
    """
    if len(values) == 0:
        raise ValueError("a mean needs values")
    low, high = percentile_interval(resampled_means(values)).tolist()
    return Interval(float(values.mean()), low, high)


def paired_ratio(above: Floats, below: Floats, confidence: float = 0.95) -> Interval:
    """Returns the typical ratio ``above / below`` of pairs of values, with Student's interval.

    The two values of a pair should be measured together, so that slow changes cancel. The typical
    ratio is the Hodges-Lehmann estimate of the logarithms, see ``center``.

    Raises:
        ValueError: there are fewer than 2 pairs.
    """
    if len(above) < 2:
        raise ValueError("the interval of a ratio needs at least two pairs of values")
    logs = np.log(above) - np.log(below)
    found = student_interval(float(center(logs)), logs, confidence)
    return Interval(*(math.exp(x) for x in (found.value, found.low, found.high)))


def signed_rank_ratio(above: Floats, below: Floats) -> Interval:
    """Returns the typical ratio of pairs with the 95 % interval of Wilcoxon's signed-rank test.

    A burst of long steps widens Student's interval, but not this interval. This interval is valid
    even if successive pairs are correlated, but the two values of each pair must be exchangeable.
    Fewer than 6 pairs get Student's interval.
    """
    if len(above) < _LEAST_RANKED:
        return paired_ratio(above, below)
    logs = np.log(above) - np.log(below)
    first, second = np.triu_indices(len(logs))
    means = np.sort((logs[first] + logs[second]) / 2)
    out, part = _signed_ranks_outside(len(logs))
    low = means[out] + part * (means[out + 1] - means[out])
    high = means[-1 - out] + part * (means[-2 - out] - means[-1 - out])
    return Interval(*(math.exp(float(x)) for x in (np.median(means), low, high)))


def _signed_ranks_outside(n: int) -> tuple[int, float]:
    """Returns ``(out, part)``, which give the bounds of the interval of ``signed_rank_ratio``.

    Let ``a`` be the sorted means of all pairs of values, beginning at one end. Each value also
    forms a pair with itself. The bound at this end is ``a[out] + part * (a[out + 1] - a[out])``.
    The test has only certain confidence levels, so ``part`` interpolates between two levels.
    Source: Hollander and Wolfe, Nonparametric Statistical Methods (1973), section 3.3.
    """
    mean = n * (n + 1) / 4
    if n > _COUNTED:
        deviation = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        return math.floor(mean - 1.96 * deviation) - 1, 0.0
    ways = np.zeros(int(2 * mean) + 1)
    ways[0] = 1
    for rank in range(1, n + 1):
        ways[rank:] += ways[:-rank].copy()
    tails = np.cumsum(ways) / 2.0**n
    out = int((tails <= 0.025).sum()) - 1
    return out, float((0.025 - tails[out]) / (tails[out + 1] - tails[out]))


def center(values: Floats) -> Floats:
    """Returns the Hodges-Lehmann estimate along the last axis: the median of all pairs' means.

    A quarter of the values cannot change the estimate much. Source: Hodges and Lehmann, Estimates
    of Location Based on Rank Tests, Annals of Mathematical Statistics 34:2, 1963.
    """
    first, second = np.triu_indices(values.shape[-1])
    pairs = (values[..., first] + values[..., second]) / 2
    return np.asarray(np.median(pairs, axis=-1), dtype=np.float64)


def student_interval(value: float, values: Floats, confidence: float) -> Interval:
    """Returns Student's interval around an estimate of the values' center.

    For 3 or 4 values, bootstrap percentiles would be too narrow, because they cannot leave the
    range of the values. The interval is ``value`` plus and minus t standard errors of the mean. For
    a Hodges-Lehmann estimate, this standard error is too large if some values are disturbed.
    """
    t = student_t_quantile((1 + confidence) / 2, len(values) - 1)
    half = t * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Interval(value, value - half, value + half)


def percentile_interval(drawn: npt.ArrayLike) -> Floats:
    """Returns the bounds ``[2, ...]`` of the middle 95 % of resamples, along the first axis.

    This is the percentile bootstrap (Efron and Tibshirani, An Introduction to the Bootstrap, 1993,
    13.3).
    """
    return np.asarray(np.percentile(np.asarray(drawn), [2.5, 97.5], axis=0), dtype=np.float64)


def resampled_means(values: Floats, seed: int = _SEED) -> Floats:
    """Returns the means of 2,000 bootstrap samples.

    Args:
        values: ``[n]`` or ``[n, columns]``; samples are drawn from the rows. If there are more than
            500 rows, neighbouring rows are averaged first.
        seed: seed of the draws; independent data sets need different seeds.
    """
    if len(values) > _BLOCKS:
        first = np.linspace(0, len(values), _BLOCKS, endpoint=False).astype(np.int64)
        lengths = np.diff(np.append(first, len(values)))
        values = (np.add.reduceat(values, first, axis=0).T / lengths).T
    random = np.random.default_rng(seed)
    rows = random.integers(0, len(values), size=(_RESAMPLES, len(values)))
    parts = [values[some].mean(axis=1) for some in np.array_split(rows, _PARTS)]
    return np.concatenate(parts).astype(np.float64, copy=False)


@lru_cache(maxsize=8)
def resamples(count: int) -> npt.NDArray[np.int64]:
    """Returns 10,000 bootstrap samples of ``count`` rounds, as indices ``[sample, draw]``.

    All figures of the same number of rounds share these samples.
    """
    draw = np.random.default_rng(_ROUND_SEED)
    return draw.integers(0, count, size=(_ROUND_RESAMPLES, count))


def interval_of(value: float, drawn: Floats, count: int, confidence: float) -> Interval:
    """Returns the interval of a figure, given the figure's values in bootstrap samples.

    For few values, plain percentiles would be too narrow. So each bound is the percentile at the
    probability ``Phi(-sqrt(n / (n - 1)) * t)``, counted from its end. Here n is ``count``, and t is
    Student's quantile for n - 1 degrees of freedom (Hesterberg, What Teachers Should Know About the
    Bootstrap, The American Statistician 69:4, 2015). If all of ``drawn`` is finite, each bound is
    also at least ``sqrt(n / (n - 1)) * t * drawn.std()`` away from ``value``.
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


def _resampled_medians(values: Floats, random: np.random.Generator) -> Floats:
    rows = random.integers(0, len(values), size=(_RESAMPLES, len(values)))
    return np.asarray(np.median(values[rows], axis=1), dtype=np.float64)


@lru_cache
def student_t_quantile(probability: float, degrees: int) -> float:
    """Returns a quantile of Student's t distribution.

    Args:
        probability: above 0.5 and below 1.
        degrees: degrees of freedom, 1 or more.
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
    """Returns the probability of values below ``t`` under Student's t distribution.

    Simpson's rule integrates cos(a)^(n - 1), with n = ``degrees`` and t = sqrt(n) tan(a).
    """
    scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - math.log(math.pi) / 2
    angle = np.linspace(0.0, math.atan(t / math.sqrt(degrees)), 2001)
    values = np.cos(angle) ** (degrees - 1)
    step = angle[1] - angle[0]
    area = step / 3 * (values[0] + values[-1] + 4 * values[1::2].sum() + 2 * values[2:-1:2].sum())
    return 0.5 + math.exp(scale) * float(area)


#: Smallest number of rounds from which a conclusion is drawn.
MIN_ROUNDS = 3
CONFIDENCE = 0.95


def ratio_of_rounds(
    above: Floats, below: Floats, confidence: float = CONFIDENCE
) -> Interval | None:
    """Returns the ``paired_ratio`` of rounds; None for fewer than MIN_ROUNDS rounds."""
    return None if len(above) < MIN_ROUNDS else paired_ratio(above, below, confidence)


def typical_of_rounds(values: Floats, confidence: float = CONFIDENCE) -> Interval | None:
    """Returns the typical value of a round, in the unit of ``values``.

    It is estimated as in ``ratio_of_rounds``; None for fewer than MIN_ROUNDS values.
    """
    return ratio_of_rounds(values, np.ones_like(values), confidence)


def mean_of_rounds(values: Floats, confidence: float = CONFIDENCE) -> Interval | None:
    """Returns the mean with Student's interval; None if values are too few or not finite."""
    if len(values) < MIN_ROUNDS or not np.isfinite(values).all():
        return None
    return student_interval(float(values.mean()), values, confidence)
