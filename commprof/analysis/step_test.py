"""Do the steps of two runs differ by more than chance? A rank test for neighbours that are alike.

The Mann-Whitney test (:mod:`rank_test`) takes values as independent. Steps that follow each other
are alike, so n of them are worth n (1 - r) / (1 + r) independent ones, r being the lag-1
correlation of the ranks within the samples (Bayley and Hammersley, "The Effective Number of
Independent Observations in an Autocorrelated Time Series", J. R. Statist. Soc. 8 (1946) 184-197).
The variance of the test's normal approximation is multiplied by the inverse of that share.

Few steps that are alike look more independent than they are: of n values about their own mean the
expected correlation is r - (1 + 3 r) / n (Kendall, "Note on Bias in the Estimation of
Autocorrelation", Biometrika 41 (1954) 403-404). That is put right, and one standard error is added,
because too small an r makes false alarms where too large an r only asks for more steps. Where the
steps are worth so few that nothing could differ by more than chance, there is no p-value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from commprof.analysis.intervals import Floats
from commprof.analysis.rank_test import holm, midranks

#: Chance of a false alarm.
SIGNIFICANCE = 0.05
#: Largest correlation that is reckoned with.
_LARGEST = 0.99


def step_test(a: Floats, b: Floats) -> float:
    """Two-sided p-value, corrected for ties and continuity.

    NaN where a sample is empty, or both are worth too few independent steps.
    """
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
    share = _independent_share(ranks[:n], ranks[n:])
    if smallest_p_value(n * share, m * share) >= SIGNIFICANCE:
        return math.nan
    z = _z(float(ranks[:n].sum()) - n * (total + 1) / 2, variance / share)
    return math.erfc(z / math.sqrt(2))


def independent_share(a: Floats, b: Floats) -> float:
    """How many independent steps a step of both samples is worth, from 0.005 to 1."""
    if len(a) == 0 or len(b) == 0:
        return 1.0
    ranks = midranks(np.concatenate([a, b]))
    return _independent_share(ranks[: len(a)], ranks[len(a) :])


def _independent_share(a: Floats, b: Floats) -> float:
    n = 2 * len(a) * len(b) / (len(a) + len(b))
    r = _LARGEST
    if n > 3:
        r = min(_LARGEST, (n * lag_one(a, b) + 1) / (n - 3))
        r += math.sqrt(max(0.0, 1 - r**2) / (len(a) + len(b)))
        r = min(_LARGEST, max(0.0, r))
    return (1 - r) / (1 + r)


def smallest_p_value(n: float, m: float) -> float:
    """P-value of samples that do not overlap and are worth so many independent values."""
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
    # The mean of equal values is off by a rounding, which all of them would share.
    centred = [sample - sample.mean() for sample in samples if np.ptp(sample) > 0]
    square = sum(float((sample**2).sum()) for sample in centred)
    product = sum(float((sample[1:] * sample[:-1]).sum()) for sample in centred)
    return min(_LARGEST, product / square) if square > 0 else 0.0
