"""How long a collective took, from when each rank began and ended it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.trace.columns import Ints

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Times:
    """One rank's calls of one kind, in the order in which all ranks made them."""

    begin_ns: Ints
    """When it called, by its own CLOCK_MONOTONIC."""
    end_ns: Ints
    """When its result was there."""


def durations_us(ranks: Sequence[Times], one_clock: bool) -> Floats:
    """Time of each call of all ranks together.

    one_clock: the ranks' times are of one clock. Then a call takes from the last rank's begin to
    the last rank's end, and waiting for a late rank is in no figure. Otherwise it takes as long
    as in the rank in which it took longest, late ranks included.
    """
    begin = np.stack([times.begin_ns for times in ranks])
    end = np.stack([times.end_ns for times in ranks])
    own = (end - begin).max(axis=0)
    return np.asarray((end.max(axis=0) - begin.max(axis=0) if one_clock else own) / 1e3)


def skews_us(ranks: Sequence[Times]) -> Floats:
    """From the first rank's begin to the last one's, of ranks that share a clock."""
    begin = np.stack([times.begin_ns for times in ranks])
    return np.asarray((begin.max(axis=0) - begin.min(axis=0)) / 1e3)
