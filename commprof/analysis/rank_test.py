"""The Mann-Whitney rank test: do two samples come from one distribution?

Mann and Whitney, "On a Test of Whether one of Two Random Variables is Stochastically Larger than
the Other", Ann. Math. Statist. 18 (1947) 50-60. Exact for small samples, ties included, by counting
all ways to draw the first sample's ranks; for larger ones by the normal approximation with the
correction for ties and continuity (Lehmann, Nonparametrics, 1975, section 1.4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from commprof.analysis.collectives.sweep_samples import Floats

_EXACT_UP_TO = 30  # values in each sample; counting takes milliseconds


def rank_test(first: Sequence[float], second: Sequence[float]) -> float:
    """Two-sided p-value. 1.0 where either is empty or all values are equal."""
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
    """The smallest p-value that samples of n and m values without ties can have."""
    return min(1.0, 2 / math.comb(n + m, n))


def with_correlation(p_value: float, correlation: float) -> float:
    """The p-value where neighbours in time resemble each other with this lag-one correlation.

    n such values say of their mean what n (1 - r) / (1 + r) independent ones do (Bayley and
    Hammersley, J. R. Statist. Soc. Suppl. 8 (1946) 184-197), so the test's normal deviate shrinks
    by the root of that. A negative correlation changes nothing.
    """
    if correlation <= 0 or p_value >= 1:
        return p_value
    deviate = -NormalDist().inv_cdf(max(p_value, 1e-300) / 2)
    shrunk = deviate * math.sqrt((1 - correlation) / (1 + correlation))
    return math.erfc(shrunk / math.sqrt(2))


def midranks(values: Floats) -> Floats:
    """Ranks from 1; equal values share the mean of theirs."""
    order = np.argsort(values, kind="stable")
    _, first, counts = np.unique(values[order], return_index=True, return_counts=True)
    shared = first + (counts + 1) / 2
    ranks = np.empty(len(values))
    ranks[order] = np.repeat(shared, counts)
    return ranks


def _exact(ranks: Floats, n: int) -> float:
    """Among all choices of n ranks, the share whose sum is as far from its mean."""
    doubled = np.rint(2 * ranks).astype(np.int64)  # midranks are halves
    total = int(doubled.sum())
    ways = np.zeros((n + 1, total + 1))
    ways[0, 0] = 1
    for value in doubled:
        # From the back, so that each rank is drawn once.
        for drawn in range(n, 0, -1):
            ways[drawn, value:] += ways[drawn - 1, : total + 1 - value]
    sums = np.arange(total + 1)
    mean = n * total / len(ranks)
    observed = abs(doubled[:n].sum() - mean)
    as_far = np.abs(sums - mean) >= observed - 1e-9
    return min(1.0, float(ways[n][as_far].sum() / math.comb(len(ranks), n)))


def _normal(ranks: Floats, n: int) -> float:
    size = len(ranks)
    m = size - n
    _, ties = np.unique(ranks, return_counts=True)
    tied = float((ties.astype(np.float64) ** 3 - ties).sum()) / (size * (size - 1))
    variance = n * m / 12 * (size + 1 - tied)
    away = abs(float(ranks[:n].sum()) - n * (size + 1) / 2)
    z = max(away - 0.5, 0.0) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2))


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for their number: below a, none of the true hypotheses with chance 1 - a.

    Holm, "A Simple Sequentially Rejective Multiple Test Procedure", Scand. J. Statist. 6 (1979).
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected = [1.0] * len(p_values)
    largest = 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        corrected[index] = largest
    return corrected
