"""Times between measured sizes, from the sizes beside them.

NCCL changes protocol, algorithm and number of channels with size, at places that no measurement
names: a few lines miss what lies between. Where sizes are dense, the two beside a size say more.
A straight line between them in time over size is too low where latency still counts, one in their
logarithms too high: the geometric mean of both is taken. A size whose own time is uncertain is
drawn towards what its neighbours say of it.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from commprof.stats.intervals import robust_deviation

Floats = npt.NDArray[np.float64]
#: Bytes per step, and seconds per step.
Knot = tuple[float, float]

#: Neighbours that are further apart than this factor say nothing of what is between them. Sizes
#: that double are dense even if one of them is left out, and for the guess at a size that is
#: beside it if two are.
DENSE: Final = 5.0
_DENSE_FOR_GUESSES: Final = 10.0


def between(knots: Sequence[Knot], x: float, dense: float = DENSE) -> float:
    """Time at ``x`` by the knots around it; NaN where there are none, or none that are near."""
    at = bisect.bisect_right(knots, (x, math.inf))
    if at and knots[at - 1][0] == x:
        return knots[at - 1][1]
    if not 0 < at < len(knots):
        return math.nan
    (low, before), (high, after) = knots[at - 1], knots[at]
    if not 0 < high <= dense * low:
        return math.nan
    straight = before + (after - before) * (x - low) / (high - low)
    power = before * (after / before) ** (math.log(x / low) / math.log(high / low))
    return math.sqrt(straight * power)


def knots_through(x: Floats, y: Floats, error: Floats) -> tuple[Knot, ...]:
    """A knot per size.

    How far each is drawn to what its neighbours say is its own variance over the sum of that
    and the variance of such guesses over all sizes.

    Args:
        x: bytes per step; several points may have the same.
        y: seconds per step.
        error: relative standard error of each.
    """
    values, place = np.unique(x, return_inverse=True)
    count = np.bincount(place)
    time = np.bincount(place, weights=np.log(y)) / count
    variance = np.bincount(place, weights=error**2) / count**2
    knots = list(zip(values.tolist(), np.exp(time).tolist(), strict=True))
    guesses = [
        between(knots[:at] + knots[at + 1 :], knot[0], _DENSE_FOR_GUESSES)
        for at, knot in enumerate(knots)
    ]
    off = np.log(guesses) - time
    known = np.isfinite(off)
    if not known.any():
        return tuple(knots)
    variance_of_guess = robust_deviation(off[known], about=0.0) ** 2
    share = variance / np.maximum(variance + variance_of_guess, 1e-300)
    drawn = np.exp(time + np.where(known, share * np.where(known, off, 0.0), 0.0))
    return tuple(zip(values.tolist(), drawn.tolist(), strict=True))
