"""Finds values that lie farther from the others than chance explains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Largest allowed probability that any value stands out by chance.
SIGNIFICANCE: Final = 0.001
#: A value can stand out only if its excess over the median is at least this many times the largest
#: excess of the values that do not stand out.
CLEARLY: Final = 2.0
#: Smallest number of other values: their spread must be measured.
FEWEST_OTHERS: Final = 3
#: The series in ``student_tail`` ends at the first term below this fraction of the sum.
_NEGLIGIBLE = 1e-17


def chance_beyond(value: float, others: Floats) -> float:
    """Returns the probability that another value like ``others`` is at least ``value``.

    All values are assumed to come from one normal distribution. Returns 1.0 for fewer than two
    others, and 0.0 or 1.0 if all others are equal.
    """
    count = len(others)
    if count < 2:
        return 1.0
    away, spread = value - float(others.mean()), float(others.std(ddof=1))
    if not spread > 0:
        return 0.0 if away > 0 else 1.0
    return student_tail(away / (spread * math.sqrt(1 + 1 / count)), count - 1)


def student_tail(deviate: float, degrees: int) -> float:
    """Returns the probability that a value of Student's t distribution is at least ``deviate``.

    ``degrees`` is the number of degrees of freedom. The error is about 1e-14 (Abramowitz and
    Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4).
    """
    angle = math.atan2(abs(deviate), math.sqrt(degrees))
    cosine_squared = math.cos(angle) ** 2
    is_odd = degrees % 2 == 1
    term = math.cos(angle) if is_odd else 1.0
    total = 0.0
    for power in range(2 if is_odd else 1, degrees, 2):
        total += term
        term *= cosine_squared * power / (power + 1)
        if term < _NEGLIGIBLE * total:
            break
    inside = math.sin(angle) * total
    if is_odd:
        inside = 2 / math.pi * (angle + inside)
    tail = max(0.0, (1 - inside) / 2)
    return tail if deviate >= 0 else 1 - tail


def standing_out(excess: Floats, most: int) -> list[int]:
    """Returns the indices of values that are clearly larger than all others, the largest first.

    Args:
        excess: each value minus the median of all values.
        most: largest number of values that may stand out.

    The largest set that stands out by more than chance is returned. It is empty if there is no such
    set, or if a value is not finite.
    """
    if not np.isfinite(excess).all():
        return []
    order = np.argsort(-excess, kind="stable")
    falling = excess[order]
    for size in range(min(most, len(excess) - FEWEST_OTHERS), 0, -1):
        least, others = float(falling[size - 1]), falling[size:]
        if least < CLEARLY * max(float(others[0]), 0.0) or least <= 0:
            continue
        standing: list[int] = order[:size].tolist()
        if chance_of_standing_out(excess, standing) <= SIGNIFICANCE:
            return standing
    return []


def chance_of_standing_out(excess: Floats, standing: Sequence[int]) -> float:
    """Returns the probability that any value stands out as far as ``standing`` by chance.

    Args:
        excess: as for :func:`standing_out`.
        standing: indices of the values that are larger than all others. The smallest of these
            values is tested.
    """
    least = float(excess[list(standing)].min())
    return min(1.0, chance_beyond(least, np.delete(excess, list(standing))) * len(excess))
