"""Do the steps of two runs differ by more than chance? A rank test for neighbours that are alike.

The Mann-Whitney test (:mod:`rank_test`) takes values as independent. Steps that follow each other
are alike, so many of them are worth fewer. The standard deviation of its normal approximation is
therefore widened by the root of (1 + r) / (1 - r), r being the lag-1 correlation of the ranks
within the samples where it is positive (Bayley and Hammersley, "The Effective Number of Independent
Observations in an Autocorrelated Time Series", J. R. Statist. Soc. 8 (1946) 184-197).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from commprof.analysis.intervals import Floats
from commprof.analysis.rank_test import holm, midranks


def step_test(a: Floats, b: Floats) -> float:
    """Two-sided p-value; NaN where a sample is empty. Corrected for ties and continuity."""
    n, m = len(a), len(b)
    if n == 0 or m == 0:
        return math.nan
    ranks = midranks(np.concatenate([a, b]))
    total = n + m
    _, counts = np.unique(ranks, return_counts=True)
    ties = float((counts.astype(np.float64) ** 3 - counts).sum()) / (total * (total - 1))
    variance = n * m / 12 * (total + 1 - ties)
    if variance <= 0:  # all values are equal
        return 1.0
    r = max(0.0, lag_one(ranks[:n], ranks[n:]))
    z = _z(float(ranks[:n].sum()) - n * (total + 1) / 2, variance * (1 + r) / (1 - r))
    return math.erfc(z / math.sqrt(2))


def smallest_p_value(n: int, m: int) -> float:
    """Of samples of these sizes that do not overlap at all."""
    if n == 0 or m == 0:
        return 1.0
    return math.erfc(_z(n * m / 2, n * m * (n + m + 1) / 12) / math.sqrt(2))


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Corrected for their number (Holm 1979); NaN stays NaN and does not count."""
    known = [i for i, p in enumerate(p_values) if not math.isnan(p)]
    result = [math.nan] * len(p_values)
    for i, p in zip(known, holm([p_values[i] for i in known]), strict=True):
        result[i] = p
    return result


def _z(away: float, variance: float) -> float:
    return max(0.0, abs(away) - 0.5) / math.sqrt(variance)


def lag_one(*samples: Floats) -> float:
    """Correlation of each value with the next one of its sample, each about its own mean."""
    centred = [sample - sample.mean() for sample in samples]
    square = sum(float((sample**2).sum()) for sample in centred)
    product = sum(float((sample[1:] * sample[:-1]).sum()) for sample in centred)
    return min(0.99, product / square) if square > 0 else 0.0
