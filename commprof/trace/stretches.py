"""Times as begins and ends: what lies in any of them, in both of two, or in one alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

_EVER: Final = 2**62


@dataclass(frozen=True)
class Stretches:
    """Times, in order and apart from each other."""

    begin_ns: Ints
    end_ns: Ints

    def __len__(self) -> int:
        """Number of stretches."""
        return len(self.begin_ns)

    @property
    def length_ns(self) -> Ints:
        """Length of each stretch."""
        return self.end_ns - self.begin_ns


def stretches(begin_ns: Ints, end_ns: Ints) -> Stretches:
    """The time within any of these, each moment once."""
    return each_once(begin_ns, end_ns)[1]


def each_once(begin_ns: Ints, end_ns: Ints) -> tuple[Ints, Stretches]:
    """Stretches that overlap no more, and the row of each: the one that began first."""
    order = np.argsort(begin_ns, kind="stable")
    begin_ns, end_ns = begin_ns[order], end_ns[order]
    before = np.maximum.accumulate(np.concatenate(([-_EVER], end_ns)))[:-1]
    begin_ns = np.maximum(begin_ns, before)
    chosen = begin_ns < end_ns
    return order[chosen].astype(np.int64), Stretches(begin_ns[chosen], end_ns[chosen])


def rows_within(some: Stretches, others: Stretches) -> tuple[Ints, Stretches]:
    """The time that lies in both, and the row of the first that each piece is of."""
    first = np.searchsorted(others.end_ns, some.begin_ns, side="right")
    last = np.searchsorted(others.begin_ns, some.end_ns, side="left")
    count = np.maximum(0, last - first)
    row = np.repeat(np.arange(len(some)), count)
    other = np.arange(len(row)) - np.repeat(np.cumsum(count) - count - first, count)
    pieces = Stretches(
        np.maximum(some.begin_ns[row], others.begin_ns[other]),
        np.minimum(some.end_ns[row], others.end_ns[other]),
    )
    return row.astype(np.int64), pieces


def within(some: Stretches, others: Stretches) -> Stretches:
    """The time that lies in both."""
    return rows_within(some, others)[1]


def gaps(others: Stretches) -> Stretches:
    """All time outside of these."""
    return Stretches(
        np.concatenate(([-_EVER], others.end_ns)), np.concatenate((others.begin_ns, [_EVER]))
    )


def between(moments_ns: Ints) -> Stretches:
    """All time, cut at these moments."""
    moments_ns = np.unique(moments_ns)
    return Stretches(np.concatenate(([-_EVER], moments_ns)), np.concatenate((moments_ns, [_EVER])))


def outside(some: Stretches, others: Stretches) -> Stretches:
    """The time of the first that does not lie in the others."""
    return within(some, gaps(others))


def covered(
    begin_ns: Ints,
    end_ns: Ints,
    amount: npt.NDArray[np.float64] | None,
    first_ns: Ints,
    last_ns: Ints,
) -> npt.NDArray[np.float64]:
    """Per window ``first_ns`` to ``last_ns`` what lies in it of stretches, in order and apart.

    Each stretch holds its length, or the amount given, spread evenly.
    """
    if len(begin_ns) == 0:
        return np.zeros(len(first_ns))
    held = (end_ns - begin_ns).astype(np.float64) if amount is None else amount
    total = np.cumsum(held)
    # Less the first: times since 1970 in ns have no place in a float.
    at = np.stack([begin_ns, end_ns], axis=1).ravel() - begin_ns[0]
    reached = np.stack([total - held, total], axis=1).ravel()
    until, since = (np.interp(time - begin_ns[0], at, reached) for time in (last_ns, first_ns))
    result: npt.NDArray[np.float64] = until - since
    return result
