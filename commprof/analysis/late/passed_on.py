"""Follows waiting through ranks that came late because they had waited themselves.

Rank A is late in one group. Rank B waits for A, and is therefore late in another group, where rank
C waits for B. Always-on mode keeps only sums of waiting over many steps, which do not show which
wait caused which. But the sums bound what B passed on: the part of B's lateness that extra work of
B does not explain, and at most as much as B itself waited.
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
#: Only ranks that cause at least this fraction of all waiting are followed, and at most this many
#: ranks.
_OF_ALL, _MOST_RANKS = 0.002, 256
#: Longest chain of ranks that is followed.
_LONGEST = 16


@dataclass(frozen=True)
class PassedOn:
    """Waiting, charged to the rank where it began instead of to the ranks that passed it on."""

    #: These arrays are like the arguments of :func:`passed_on`. In ``by_waiting_ns``, only the
    #: column of the rank that caused the most waiting is filled.
    waited_for_ns: Floats
    by_waiting_ns: Floats
    #: Ranks that are waited for mostly because they themselves waited for the rank that caused the
    #: most waiting.
    through: tuple[int, ...]


def passed_on(
    waited_for_ns: Floats, by_waiting_ns: Floats, excess_ns: Floats, steps: int
) -> PassedOn | None:
    """Charges waiting to the rank where it began; returns None if no rank passed waiting on.

    Args:
        waited_for_ns: as in ``find_late_rank``, but with a row per block of time, not per step.
        by_waiting_ns: ``[waiting rank, rank]`` as in ``find_late_rank``.
        excess_ns: time per step by which each rank's own work exceeds that of the others; NaN if
            not known.
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

    ``moved``: ``[rank in through, rank]``, fraction of the waiting for the first rank that moves to
    the second rank.
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
    # By rank: fraction of the waiting for this rank that began with rank ``first``.
    begins = np.zeros(settled.shape[1])
    begins[first] = retained[through.index(first)] if first in through else 1.0
    share = begins.copy()
    for _ in range(_LONGEST):
        share[through] = begins[through] + moved @ share
    column = by_waiting_ns @ share
    if not column.sum() > column[first]:
        return None  # a circle: all waits of the first rank began with itself
    # Leaves out the first rank's waiting for ranks that it had made late itself.
    settled[:, first] *= 1 - column[first] / column.sum()
    column[first] = 0.0
    if int(np.argmax(settled.sum(axis=0))) != first:
        return None
    by_waiting = np.zeros_like(by_waiting_ns)
    by_waiting[:, first] = column
    passers = [rank for rank in through if rank != first and share[rank] >= _MOST]
    return PassedOn(settled, by_waiting, tuple(sorted(passers)))
