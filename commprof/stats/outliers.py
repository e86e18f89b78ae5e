"""Computes how probable it is that a value lies as far from other values as it does by chance."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

#: Terms of the series below this value are negligible.
_NEGLIGIBLE = 1e-17


def chance_beyond(value: float, others: npt.NDArray[np.float64]) -> float:
    """Returns the probability that one more value like ``others`` is ``value`` or more.

    All values are taken as normal with one mean and spread, which are estimated from ``others``; so
    the deviate has Student's t distribution. Returns 1.0 with fewer than two others, and 0.0 or 1.0
    if all others are equal.
    """
    count = len(others)
    if count < 2:
        return 1.0
    away, spread = value - float(others.mean()), float(others.std(ddof=1))
    if not spread > 0:
        return 0.0 if away > 0 else 1.0
    return student_tail(away / (spread * math.sqrt(1 + 1 / count)), count - 1)


def student_tail(deviate: float, degrees: int) -> float:
    """Returns the probability of ``deviate`` or more under Student's t with ``degrees`` degrees.

    Exact sums for whole degrees (Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3
    and 26.7.4); right to about 1e-14.
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
