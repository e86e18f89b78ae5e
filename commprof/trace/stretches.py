"""Set operations on time intervals: union, intersection, complement and difference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

_EVER: Final = 2**62


@dataclass(frozen=True)
class Stretches:
    """Time intervals that do not overlap, sorted by time."""

    begin_ns: Ints
    end_ns: Ints

    def __len__(self) -> int:
        """Number of intervals."""
        return len(self.begin_ns)

    @property
    def length_ns(self) -> Ints:
        """Length of each interval."""
        return self.end_ns - self.begin_ns


def stretches(begin_ns: Ints, end_ns: Ints) -> Stretches:
    """Removes overlaps from intervals, so that each moment counts once."""
    return each_once(begin_ns, end_ns)[1]


def union(*some: Stretches) -> Stretches:
    """Returns the times that are in at least one of the sets of intervals."""
    return stretches(
        np.concatenate([part.begin_ns for part in some]),
        np.concatenate([part.end_ns for part in some]),
    )


def each_once(begin_ns: Ints, end_ns: Ints) -> tuple[Ints, Stretches]:
    """Removes overlaps; each overlap stays in the interval that began first.

    Returns:
        The input rows of the remaining intervals, and these intervals.
    """
    order = np.argsort(begin_ns, kind="stable")
    begin_ns, end_ns = begin_ns[order], end_ns[order]
    before = np.maximum.accumulate(np.concatenate(([-_EVER], end_ns)))[:-1]
    begin_ns = np.maximum(begin_ns, before)
    chosen = begin_ns < end_ns
    return order[chosen].astype(np.int64), Stretches(begin_ns[chosen], end_ns[chosen])


def rows_within(some: Stretches, others: Stretches) -> tuple[Ints, Stretches]:
    """Intersects two sets of intervals.

    Returns:
        The row in ``some`` of each resulting interval, and the resulting intervals.
    """
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
    """Returns the intersection of two sets of intervals."""
    return rows_within(some, others)[1]


def gaps(others: Stretches) -> Stretches:
    """Returns the complement of the intervals."""
    return Stretches(
        np.concatenate(([-_EVER], others.end_ns)), np.concatenate((others.begin_ns, [_EVER]))
    )


def between(moments_ns: Ints) -> Stretches:
    """Divides all time into intervals at these moments."""
    moments_ns = np.unique(moments_ns)
    return Stretches(np.concatenate(([-_EVER], moments_ns)), np.concatenate((moments_ns, [_EVER])))


def outside(some: Stretches, others: Stretches) -> Stretches:
    """Returns the parts of the intervals ``some`` that lie in no interval of ``others``."""
    return within(some, gaps(others))


def covered(
    begin_ns: Ints,
    end_ns: Ints,
    amount: npt.NDArray[np.float64] | None,
    first_ns: Ints,
    last_ns: Ints,
) -> npt.NDArray[np.float64]:
    """Returns how many ns of each window the intervals cover.

    A window is from ``first_ns`` to ``last_ns``. If ``amount`` is given, the function returns
    amounts instead of ns: each interval's amount is spread evenly over the interval.
    """
    if len(begin_ns) == 0:
        return np.zeros(len(first_ns))
    reached = _reached(begin_ns, end_ns, amount)
    result: npt.NDArray[np.float64] = reached(last_ns) - reached(first_ns)
    return result


class Windows:
    """Windows of time, for several calls of :meth:`covered`."""

    def __init__(self, first_ns: Ints, last_ns: Ints) -> None:
        """``first_ns``: begins of the windows, in any order; ``last_ns``: their ends."""
        self.first_ns, self.last_ns = first_ns, last_ns
        both = np.concatenate((first_ns, last_ns))
        self._moments_ns, moment_row = np.unique(both, return_inverse=True)
        self._since, self._until = moment_row[: len(first_ns)], moment_row[len(first_ns) :]

    def __len__(self) -> int:
        """Number of windows."""
        return len(self.first_ns)

    def covered(
        self, begin_ns: Ints, end_ns: Ints, amount: npt.NDArray[np.float64] | None = None
    ) -> npt.NDArray[np.float64]:
        """Returns what the function :func:`covered` returns for these windows."""
        if len(begin_ns) == 0:
            return np.zeros(len(self))
        reached = _reached(begin_ns, end_ns, amount)(self._moments_ns)
        result: npt.NDArray[np.float64] = reached[self._until] - reached[self._since]
        return result


def _reached(
    begin_ns: Ints, end_ns: Ints, amount: npt.NDArray[np.float64] | None
) -> Callable[[Ints], npt.NDArray[np.float64]]:
    """Returns a function that adds up the lengths or amounts before given moments."""
    held = (end_ns - begin_ns).astype(np.float64) if amount is None else amount
    total = np.cumsum(held)
    # Times are counted from the first interval's begin: a float cannot hold ns since 1970 exactly.
    since_ns = np.stack([begin_ns, end_ns], axis=1).ravel() - begin_ns[0]
    reached = np.stack([total - held, total], axis=1).ravel()
    return lambda moments_ns: np.interp(moments_ns - begin_ns[0], since_ns, reached)
