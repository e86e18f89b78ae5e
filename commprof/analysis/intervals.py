"""Medians and ratios with the interval that says how sure they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_RESAMPLES = 2000
_SEED = 20240501


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def contains(self, x: float) -> bool:
        """Whether ``x`` cannot be told from the value."""
        return self.low <= x <= self.high


def ratio_of_medians(above: Floats, below: Floats) -> Interval:
    """``median(above) / median(below)``; percentile bootstrap, both resampled.

    Raises:
        ValueError: one of the samples is empty.
    """
    if len(above) == 0 or len(below) == 0:
        raise ValueError("a ratio needs samples on both sides")
    random = np.random.default_rng(_SEED)
    ratios = _resampled_medians(above, random) / _resampled_medians(below, random)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return Interval(float(np.median(above) / np.median(below)), float(low), float(high))


def _resampled_medians(values: Floats, random: np.random.Generator) -> Floats:
    rows = random.integers(0, len(values), size=(_RESAMPLES, len(values)))
    return np.asarray(np.median(values[rows], axis=1), dtype=np.float64)
