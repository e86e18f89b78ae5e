"""Medians and ratios with the interval that says how sure they are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_RESAMPLES = 2000
_SEED = 20240501
#: Most rows that a bootstrap of means draws from.
_BLOCKS = 500


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def contains(self, x: float) -> bool:
        """Whether ``x`` cannot be told from the value."""
        return self.low <= x <= self.high


def ratio_of_medians(above: Floats, below: Floats, independent_share: float = 1.0) -> Interval:
    """``median(above) / median(below)``; percentile bootstrap, both resampled.

    Args:
        above: the values.
        below: what they are compared with.
        independent_share: how many independent values one is worth, where neighbours are alike;
            the interval is widened by the root of its inverse, on a logarithmic scale.

    Raises:
        ValueError: one of the samples is empty.
    """
    if len(above) == 0 or len(below) == 0:
        raise ValueError("a ratio needs samples on both sides")
    random = np.random.default_rng(_SEED)
    ratios = _resampled_medians(above, random) / _resampled_medians(below, random)
    value = float(np.median(above) / np.median(below))
    low, high = np.percentile(ratios, [2.5, 97.5]).tolist()
    if independent_share < 1 and low > 0 and math.isfinite(high):
        wider = 1 / math.sqrt(independent_share)
        low, high = (value * (bound / value) ** wider for bound in (low, high))
    return Interval(value, low, high)


def mean_interval(values: Floats) -> Interval:
    """The mean; percentile bootstrap.

    Raises:
        ValueError: there are no values.
    """
    if len(values) == 0:
        raise ValueError("a mean needs values")
    low, high = np.percentile(resampled_means(values), [2.5, 97.5])
    return Interval(float(values.mean()), float(low), float(high))


def resampled_means(values: Floats, seed: int = _SEED) -> Floats:
    """Means of as many bootstrap samples as every interval takes.

    Args:
        values: ``[n]`` or ``[n, columns]``; rows are drawn, of which neighbours are put together
            where there are more than 500, so that a long run stays cheap.
        seed: another one for what is independent.
    """
    if len(values) > _BLOCKS:
        first = np.linspace(0, len(values), _BLOCKS, endpoint=False).astype(np.int64)
        lengths = np.diff(np.append(first, len(values)))
        values = (np.add.reduceat(values, first, axis=0).T / lengths).T
    random = np.random.default_rng(seed)
    rows = random.integers(0, len(values), size=(_RESAMPLES, len(values)))
    return np.asarray(values[rows].mean(axis=1), dtype=np.float64)


def _resampled_medians(values: Floats, random: np.random.Generator) -> Floats:
    rows = random.integers(0, len(values), size=(_RESAMPLES, len(values)))
    return np.asarray(np.median(values[rows], axis=1), dtype=np.float64)
