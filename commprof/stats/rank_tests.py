"""Mann-Whitney rank test, with corrections for correlated values and for many comparisons.

The rank test decides whether two samples come from one distribution.

Mann and Whitney, "On a Test of Whether one of Two Random Variables is Stochastically Larger than
the Other", Ann. Math. Statist. 18 (1947) 50-60. In ``rank_test``, the p-value of small samples is
exact, also with ties: all ways to draw the first sample's ranks are counted. The p-value of larger
samples, and of all samples in ``step_test``, is the normal approximation, corrected for ties and
continuity (Lehmann, Nonparametrics, 1975, section 1.4).

Successive values may be correlated. If the lag-1 correlation is r, n values are worth about
n (1 - r) / (1 + r) independent values. This number is the effective sample size (Bayley and
Hammersley, "The Effective Number of Independent Observations in an Autocorrelated Time Series",
J. R. Statist. Soc. Suppl. 8 (1946) 184-197).

The estimate of r from n values is too low: its expectation is r - (1 + 3 r) / n (Kendall, "Note on
Bias in the Estimation of Autocorrelation", Biometrika 41 (1954) 403-404). ``lag_one`` corrects
this bias.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Estimates of a correlation are limited to this value.
LARGEST = 0.99


def lag_one(*samples: Floats) -> float:
    """Returns the lag-1 correlation within samples, corrected for the bias of few values.

    0 if the values of each sample are equal; ``LARGEST`` for samples of 3 values or fewer.
    """
    # A sample of equal values is left out, because the mean has a rounding error.
    centred = [sample - sample.mean() for sample in samples if np.ptp(sample) > 0]
    if not centred:
        return 0.0
    n = len(samples) / sum(1 / len(sample) for sample in samples)
    if n <= 3:
        return LARGEST
    square = sum(float((sample**2).sum()) for sample in centred)
    product = sum(float((sample[1:] * sample[:-1]).sum()) for sample in centred)
    return min(LARGEST, (n * product / square + 1) / (n - 3))


def worth(correlation: float) -> float:
    """Returns the effective sample size per value, 0.005 to 1, for a lag-1 correlation.

    Negative correlations count as 0.
    """
    r = min(LARGEST, max(0.0, correlation))
    return (1 - r) / (1 + r)


def cautious_worth(*samples: Floats) -> float:
    """Returns a low estimate of the effective sample size per value.

    The estimate is ``worth(r)``, with r one standard error above the samples' lag-1 correlation.
    This avoids false alarms.
    """
    r = lag_one(*samples)
    return worth(r + math.sqrt(max(0.0, 1 - r**2) / sum(map(len, samples))))


#: Probability of a false alarm.
SIGNIFICANCE = 0.05
#: Largest size of a sample for which the p-value is exact, which takes milliseconds.
_EXACT_UP_TO = 30


def rank_test(first: Sequence[float], second: Sequence[float]) -> float:
    """Returns the two-sided p-value; 1.0 if a sample is empty or if all values are equal."""
    n, m = len(first), len(second)
    if n == 0 or m == 0:
        return 1.0
    ranks = midranks(np.array([*first, *second], np.float64))
    if ranks.min() == ranks.max():
        return 1.0
    if max(n, m) <= _EXACT_UP_TO:
        return _exact(ranks, n)
    return _normal(ranks, n)


def least_p(n: int, m: int) -> float:
    """Returns the smallest possible p-value of samples of n and m values without ties."""
    return min(1.0, 2 / math.comb(n + m, n))


def with_correlation(p_value: float, correlation: float) -> float:
    """Corrects a p-value for the correlation of successive values.

    The normal deviate of the p-value is multiplied by ``sqrt(worth(correlation))``. A negative
    correlation changes nothing.
    """
    if correlation <= 0 or p_value >= 1:
        return p_value
    deviate = -NormalDist().inv_cdf(max(p_value, 1e-300) / 2)
    return two_sided(deviate * math.sqrt(worth(correlation)))


def midranks(values: Floats) -> Floats:
    """Returns ranks from 1; equal values get the mean of their ranks."""
    order = np.argsort(values, kind="stable")
    _, first, counts = np.unique(values[order], return_index=True, return_counts=True)
    shared = first + (counts + 1) / 2
    ranks = np.empty(len(values))
    ranks[order] = np.repeat(shared, counts)
    return ranks


def _exact(ranks: Floats, n: int) -> float:
    """Returns the exact two-sided p-value of the sum of the first n ``ranks``."""
    doubled = np.rint(2 * ranks).astype(np.int64)  # doubled because midranks are multiples of 0.5
    total = int(doubled.sum())
    ways = np.zeros((n + 1, total + 1))
    ways[0, 0] = 1
    for value in doubled:
        # Counts down, so that no rank is drawn twice.
        for drawn in range(n, 0, -1):
            ways[drawn, value:] += ways[drawn - 1, : total + 1 - value]
    sums = np.arange(total + 1)
    mean = n * total / len(ranks)
    observed = abs(doubled[:n].sum() - mean)
    as_far = np.abs(sums - mean) >= observed - 1e-9
    return min(1.0, float(ways[n][as_far].sum() / math.comb(len(ranks), n)))


def _normal(ranks: Floats, n: int, share: float = 1.0) -> float:
    """Returns the p-value of ``_exact`` in normal approximation.

    ``share`` is the effective sample size per value.
    """
    size = len(ranks)
    _, ties = np.unique(ranks, return_counts=True)
    tied = float((ties.astype(np.float64) ** 3 - ties).sum()) / (size * (size - 1))
    variance = n * (size - n) / 12 * (size + 1 - tied) / share
    return _beyond(float(ranks[:n].sum()) - n * (size + 1) / 2, variance)


def _beyond(away: float, variance: float) -> float:
    return two_sided(max(0.0, abs(away) - 0.5) / math.sqrt(variance))


def two_sided(deviate: float) -> float:
    """Returns the two-sided p-value of a deviate of the standard normal distribution."""
    return math.erfc(abs(deviate) / math.sqrt(2))


def step_test(a: Floats, b: Floats) -> float:
    """Returns the two-sided p-value of samples whose successive values may be correlated.

    The correlation is taken into account by ``independent_share``. NaN if a sample is empty, or if
    the effective sample sizes are too small for a significant result.
    """
    n, m = len(a), len(b)
    if n == 0 or m == 0:
        return math.nan
    ranks = midranks(np.concatenate([a, b]))
    if ranks.min() == ranks.max():
        return 1.0
    share = independent_share(a, b)
    if smallest_p_value(n * share, m * share) >= SIGNIFICANCE:
        return math.nan
    return _normal(ranks, n, share)


def independent_share(a: Floats, b: Floats) -> float:
    """Returns the effective sample size per value, from 0.005 to 1; 1 if a sample is empty."""
    if len(a) == 0 or len(b) == 0:
        return 1.0
    ranks = midranks(np.concatenate([a, b]))
    return cautious_worth(ranks[: len(a)], ranks[len(a) :])


def smallest_p_value(n: float, m: float) -> float:
    """Returns the smallest p-value of two samples whose effective sizes are n and m."""
    if n == 0 or m == 0:
        return 1.0
    return _beyond(n * m / 2, n * m * (n + m + 1) / 12)


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrects the p-values of several tests by Holm's rule.

    Holm, "A Simple Sequentially Rejective Multiple Test Procedure", Scand. J. Statist. 6 (1979).
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected = [1.0] * len(p_values)
    largest = 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        corrected[index] = largest
    return corrected


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Corrects the p-values of several tests by Holm's rule; NaN stays NaN and does not count."""
    known = [i for i, p in enumerate(p_values) if not math.isnan(p)]
    result = [math.nan] * len(p_values)
    for i, p in zip(known, holm([p_values[i] for i in known]), strict=True):
        result[i] = p
    return result
