"""A figure of commprof's beside another one of the same run."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

#: Difference that counts as agreement: of clocks and sums, of bytes.
SAME_TIME = 0.005
SAME_BYTES = 0.05


@dataclass(frozen=True)
class CrossCheck:
    """One figure, measured twice."""

    #: ``phases``, ``loop_clock``, ``ddp_bytes``, ``ddp_backward``, ``ddp_exposed``, ``network``.
    name: str
    #: What is compared, in words.
    what: str
    #: "ms", "s" or "MB".
    unit: str
    #: commprof's figure; NaN if there is none.
    ours: float
    #: The other one; NaN if there is none.
    other: float
    #: None where there is nothing to compare, or no tolerance that would be fair.
    agrees: bool | None
    #: Why a figure is missing, or how the two differ by definition.
    note: str

    @property
    def difference(self) -> float:
        """Other over ours, less 1; NaN without both."""
        if self.ours > 0 and not math.isnan(self.other):
            return self.other / self.ours - 1
        return math.nan


def compared(
    name: str, what: str, unit: str, ours: float, other: float, tolerance: float | None, note: str
) -> CrossCheck:
    """They agree within that share of ours; without a tolerance nothing is said of that."""
    agrees = None
    if tolerance is not None and not math.isnan(ours) and not math.isnan(other):
        agrees = abs(other - ours) <= tolerance * ours
    return CrossCheck(name, what, unit, ours, other, agrees, note)


def missing(name: str, what: str, unit: str, reason: str) -> CrossCheck:
    """There is nothing to compare."""
    return CrossCheck(name, what, unit, math.nan, math.nan, None, reason)


def undecided(check: CrossCheck) -> CrossCheck:
    """The same figures, of which nothing is said."""
    return dataclasses.replace(check, agrees=None)
