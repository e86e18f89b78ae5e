"""Decides whether values form two groups, and finds the border between the groups."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

#: Values are first limited to these percentiles, so that a few outliers do not form a group.
_LIMITS = (5, 95)
#: n values form two groups if the groups explain more than ``_LEAST + _FEW / sqrt(n)`` of the
#: variance. In simulations, 95 % of samples from one normal distribution were below this limit, for
#: n from 8 to 1000.
_LEAST, _FEW = 0.685, 0.65


def two_groups(values: npt.NDArray[np.float64]) -> float | None:
    """Returns the border between two groups of values; None if the values are one group.

    The border is Otsu's, which maximises the variance between the groups (N. Otsu, "A threshold
    selection method from gray-level histograms", IEEE Transactions on Systems, Man, and Cybernetics
    9:1).
    """
    if len(values) < 2:
        return None
    limited = np.sort(np.clip(values, *np.percentile(values, _LIMITS)))
    count, variance = len(limited), limited.var()
    if not variance > 0:
        return None
    below = np.arange(1, count)
    sums = np.cumsum(limited)
    apart = (sums[-1] - sums[:-1]) / (count - below) - sums[:-1] / below
    between = below * (count - below) / count**2 * apart**2
    at = int(between.argmax())
    if between[at] / variance <= _LEAST + _FEW / np.sqrt(count):
        return None
    return float(limited[at] + limited[at + 1]) / 2
