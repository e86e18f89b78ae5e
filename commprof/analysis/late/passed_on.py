"""Follows waiting through ranks that came late because they had waited themselves.

Rank B waits for rank A in one group. So B is late in another group, where rank C waits for B: B
passes waiting on. Always-on mode keeps only sums of waiting over many steps. These sums do not show
which wait caused which, but they limit what B passed on. B passed on at most as much as B itself
waited, and at most the part of its lateness that its own extra work does not explain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.analysis.late.stragglers import waiting_ranks

Floats = npt.NDArray[np.float64]

#: A rank passes on waiting if its own waits explain at least this fraction of its lateness.
_MOST = 0.5
#: Limits on the ranks that are followed: smallest fraction of all waiting that a rank causes, and
#: largest number of ranks.
_OF_ALL, _MOST_RANKS = 0.002, 256
#: Longest chain of ranks that is followed.
_LONGEST = 16


@dataclass(frozen=True)
class PassedOn:
    """Waiting times, charged to the ranks where the waiting began."""

    #: Both arrays have the axes of :func:`passed_on`'s arguments. In ``by_waiting_ns``, all columns
    #: are 0 except that of the rank that caused the most waiting.
    waited_for_ns: Floats
    by_waiting_ns: Floats
    #: Ranks that were late mostly because they waited for the rank that caused the most waiting.
    through: tuple[int, ...]


def passed_on(
    waited_for_ns: Floats, by_waiting_ns: Floats, excess_ns: Floats, steps: int
) -> PassedOn | None:
    """Finds the ranks where waiting began; returns None if no rank passed waiting on.

    Also None if the waiting leads back, in a circle, to the rank where most of it began.

    Args:
        waited_for_ns: as in ``find_late_rank``, but each row is a block of time, not a step.
        by_waiting_ns: ``[waiting rank, rank]`` as in ``find_late_rank``.
        excess_ns: by rank: time per step by which the rank's own work exceeds that of the others;
            NaN if not known.
        steps: number of steps.
    """
    caused_ns = waited_for_ns.sum(axis=0)
    costly = np.argsort(-caused_ns, kind="stable")[:_MOST_RANKS]
    costly = costly[caused_ns[costly] > _OF_ALL * caused_ns.sum()]
    through: list[int] = []
    moved: list[Floats] = []
    for rank in costly[~np.isnan(excess_ns[costly])].tolist():
        own_ns = by_waiting_ns[rank]
        waits = waiting_ranks(by_waiting_ns, rank)
        waited_ns, lateness_ns = float(own_ns.sum()) / steps, 0.0
        if waits.any():
            lateness_ns = float(by_waiting_ns[waits, rank].mean()) / steps
        passed_ns = min(waited_ns, lateness_ns - float(excess_ns[rank]))
        if passed_ns >= _MOST * lateness_ns > 0:
            through.append(rank)
            moved.append(own_ns * (passed_ns / lateness_ns / own_ns.sum()))
    if not through:
        return None
    return _moved(waited_for_ns, by_waiting_ns, through, np.array(moved))


def _moved(
    waited_for_ns: Floats, by_waiting_ns: Floats, through: Sequence[int], moved: Floats
) -> PassedOn | None:
    """Moves waiting for the ranks in ``through`` to other ranks.

    ``moved[i, rank]``: fraction of the waiting for ``through[i]`` that moves to ``rank``.
    """
    retained = 1 - moved.sum(axis=1)
    settled, arriving = np.zeros_like(waited_for_ns), waited_for_ns.copy()
    for _ in range(_LONGEST):
        passing = arriving[:, through]
        arriving[:, through] = passing * retained
        settled += arriving
        arriving = passing @ moved
    settled += arriving
    first = int(np.argmax(settled.sum(axis=0)))
    # By rank: fraction of the waiting for this rank that began at rank ``first``.
    begins = np.zeros(settled.shape[1])
    begins[first] = retained[through.index(first)] if first in through else 1.0
    share = begins.copy()
    for _ in range(_LONGEST):
        share[through] = begins[through] + moved @ share
    column = by_waiting_ns @ share
    if not column.sum() > column[first]:
        return None  # a circle: rank ``first`` caused all its waiting itself
    # Leaves out the waiting of rank ``first`` that this rank caused itself.
    settled[:, first] *= 1 - column[first] / column.sum()
    column[first] = 0.0
    if int(np.argmax(settled.sum(axis=0))) != first:
        return None
    by_waiting = np.zeros_like(by_waiting_ns)
    by_waiting[:, first] = column
    passers = [rank for rank in through if rank != first and share[rank] >= _MOST]
    return PassedOn(settled, by_waiting, tuple(sorted(passers)))
