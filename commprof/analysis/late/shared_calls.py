"""Collectives that all their ranks were seen in: who arrived when, and where ranks were in step.

The ranks of a collective that a training thread waited for last ran side by side at its end: at
that moment none of them is past the place where it waits, and those who waited are at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.matching import SEND
from commprof.analysis.late.arrivals import Arrivals
from commprof.analysis.step.exposure import Exposures
from commprof.trace.columns import Collectives, Ints

_SEED = 20261124


@dataclass(frozen=True)
class _Seen:
    """What one rank was seen in: numbers in ascending order, arrivals, and ends or 0."""

    number: Ints
    arrived_ns: Ints
    end_ns: Ints
    #: Numbers of those that its training thread waited for.
    awaited: Ints


class SharedCalls:
    """Collectives and buckets by their number, see ``Arrivals``; ranks by their place in a list."""

    def __init__(
        self,
        tables: Sequence[Collectives],
        arrivals: Sequence[Arrivals],
        exposed: Sequence[Exposures],
    ) -> None:
        """All lists have one entry per rank."""
        self._ranks = [_seen(*each) for each in zip(tables, arrivals, exposed, strict=True)]
        self._synchronised: dict[tuple[int, ...], Ints] = {}
        self.count = 1 + max(int(rank.number.max(initial=-1)) for rank in self._ranks)

    @cached_property
    def members(self) -> npt.NDArray[np.uint64]:
        """Per number a key of the set of its ranks: equal sets, and only these, have one key.

        It is the sum of a random number for each rank.
        """
        salt = np.random.default_rng(_SEED).integers(2**63, size=len(self._ranks), dtype=np.uint64)
        key = np.zeros(self.count, dtype=np.uint64)
        for rank, own in zip(self._ranks, salt, strict=True):
            key[rank.number] += own
        return key

    def has(self, place: int, number: Ints) -> npt.NDArray[np.bool_]:
        """Whether a rank is in each of these."""
        return np.isin(number, self._ranks[place].number)

    def arrived_ns(self, place: int, number: Ints) -> Ints:
        """When a rank arrived at each of these, which it is in."""
        rank = self._ranks[place]
        return rank.arrived_ns[np.searchsorted(rank.number, number)]

    def synchronised_ns(self, *places: int) -> Ints:
        """In order, the moments at which these ranks were side by side."""
        key = tuple(sorted(set(places)))
        if key not in self._synchronised:
            common = reduce(np.intersect1d, (self._awaited_by_any[place] for place in key))
            self._synchronised[key] = np.sort(self._end_ns[common])
        return self._synchronised[key]

    @cached_property
    def _end_ns(self) -> Ints:
        """Per number the end on its last rank; 0 where one of its ranks did not see the end."""
        last = np.zeros(self.count, dtype=np.int64)
        unseen = np.zeros(self.count, dtype=np.bool_)
        for rank in self._ranks:
            last[rank.number] = np.maximum(last[rank.number], rank.end_ns)
            unseen[rank.number] |= rank.end_ns == 0
        return np.where(unseen, 0, last)

    @cached_property
    def _awaited_by_any(self) -> list[Ints]:
        """Per rank those of its numbers with a known end that the thread of any rank waited for."""
        awaited = np.zeros(self.count, dtype=np.bool_)
        for rank in self._ranks:
            awaited[rank.awaited] = True
        awaited &= self._end_ns > 0
        return [rank.number[awaited[rank.number]] for rank in self._ranks]


def last_before(moments_ns: Ints, before_ns: Ints) -> Ints:
    """For each time the last of the given moments, in order, that is not after it; 0 without."""
    at = np.searchsorted(moments_ns, before_ns, side="right")
    return np.concatenate(([0], moments_ns))[at]


def _seen(table: Collectives, arrivals: Arrivals, exposed: Exposures) -> _Seen:
    buckets = arrivals.buckets
    number = np.concatenate((arrivals.collective, buckets.number))
    arrived = np.concatenate((table.issue_ns, buckets.ready_ns))
    # A message is over when its receiver has it; that its sender has no end says nothing.
    sent = (table.op == SEND) & (table.end_ns == 0)
    end = np.concatenate((np.where(sent, table.issue_ns, table.end_ns), buckets.end_ns))
    rows = np.flatnonzero(number >= 0)
    rows = rows[np.argsort(number[rows], kind="stable")]
    waited = exposed.collective[(exposed.waited_ns > 0) & (exposed.collective >= 0)]
    awaited = np.concatenate((arrivals.collective[waited], _last_buckets(arrivals, exposed)))
    return _Seen(number[rows], arrived[rows], end[rows], awaited[awaited >= 0])


def _last_buckets(arrivals: Arrivals, exposed: Exposures) -> Ints:
    """Numbers of the buckets that were done last in the backward passes that waited for theirs."""
    buckets = arrivals.buckets
    waited = exposed.graph_task[exposed.waited_ns > 0]
    order = np.argsort(buckets.end_ns, kind="stable")
    order = order[np.isin(buckets.graph_task[order], waited) & (buckets.graph_task[order] >= 0)]
    last = dict(
        zip(buckets.graph_task[order].tolist(), buckets.number[order].tolist(), strict=True)
    )
    return np.array(list(last.values()), dtype=np.int64)
