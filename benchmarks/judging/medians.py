"""The median of what was measured, and how sure it is."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_SAMPLES = 4000


def median_interval(values: npt.ArrayLike) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    found = np.asarray(values, dtype=np.float64)
    random = np.random.default_rng(0)
    samples = found[random.integers(0, len(found), size=(_SAMPLES, len(found)))]
    low, high = np.percentile(np.median(samples, axis=1), [2.5, 97.5])
    return float(low), float(high)


def ratio_interval(above: npt.ArrayLike, below: npt.ArrayLike) -> tuple[float, float]:
    """The same of median(above) / median(below), whose values belong together in pairs.

    Where a sample's lower median is 0 or less, the ratio counts as infinite.
    """
    pairs = np.array([above, below], dtype=np.float64)
    random = np.random.default_rng(0)
    drawn = pairs[:, random.integers(0, pairs.shape[1], size=(_SAMPLES, pairs.shape[1]))]
    ratios = [ratio_of(*medians) for medians in np.median(drawn, axis=2).T]
    # No interpolation: the upper end may be infinite.
    low, high = np.percentile(ratios, [2.5, 97.5], method="nearest")
    return float(low), float(high)


def ratio_of(above: float, below: float) -> float:
    """above / below; infinite where nothing, or less than that, is left below."""
    return float(above / below) if below > 0 else float("inf")
