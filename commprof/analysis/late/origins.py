"""Carries waiting that a rank passed on from another group back to the rank where it began.

If rank 2 waits for rank 1, and rank 1 came late because it had waited for rank 0 in another group,
rank 0 is the one to look at. From the moment at which two ranks were last side by side to the
arrival of the later one, each spends its time waiting for ranks of other groups, blocked by this
group, or on its own: work, and transfer in other groups. The part of a wait that comes from other
groups is

    max(0, waiting_late - waiting_other) / (the same + max(0, own_late - own_other))

where "other" is the rank that waits. This part is shared out over the waits of the late rank in
other groups, which are carried back in turn. So every wait has origins that add up to it exactly,
and where no moment is known at which the two were side by side it stays with the late rank.

(Delay costs of Boehme et al., "Identifying the Root Causes of Wait States in Large-Scale Parallel
Applications", ACM TOPC 3:2, with stretches of time in the place of call paths.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from commprof.analysis.late.arrivals import Arrivals, SharedCalls, last_before
from commprof.analysis.step.exposure import Exposures, exposures_of
from commprof.analysis.step.waiting import Waiting, split
from commprof.trace.columns import Collectives, Ints
from commprof.trace.reader import Trace
from commprof.trace.stretches import covered

Floats = npt.NDArray[np.float64]
Keys = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Origins:
    """Parts of the waits of one rank, which add up to them; all columns have one length."""

    #: Row of ``Exposures``.
    exposure: Ints
    #: Global rank where it began.
    rank: Ints
    wait_ns: Floats


@dataclass(frozen=True)
class _Rank:
    """One rank's waits."""

    rank: int
    exposed: Exposures
    waiting: Waiting
    #: Key of the ranks that each exposure is shared with; 0 where not known.
    members: Keys

    def elsewhere_ns(self, key: np.uint64, begin_ns: Ints, end_ns: Ints) -> Floats:
        """Per window how long it waited for ranks in other groups than the one of this key."""
        return self._in(self.members != key, self.wait_ns, begin_ns, end_ns)

    def here_ns(self, key: np.uint64, begin_ns: Ints, end_ns: Ints) -> Floats:
        """Per window how long this group blocked it, waiting and transfer."""
        return self._in(self.members == key, self.exposed.waited_ns, begin_ns, end_ns)

    @cached_property
    def wait_ns(self) -> Floats:
        """Per exposure; 0 where it is not known."""
        return np.nan_to_num(self.waiting.wait_ns, nan=0.0)

    def rows_in(self, begin_ns: int, end_ns: int) -> Ints:
        """Exposures that lie in a window, in part or whole."""
        first = np.searchsorted(self._ended_ns, begin_ns, side="right")
        last = np.searchsorted(self.exposed.begin_ns, end_ns, side="left")
        rows = np.arange(first, last)
        return rows[self.exposed.end_ns[rows] > begin_ns]

    @cached_property
    def _ended_ns(self) -> Ints:
        """Per exposure when it and all before it were over."""
        return np.maximum.accumulate(self.exposed.end_ns)

    def _in(
        self, chosen: npt.NDArray[np.bool_], amount_ns: Floats, begin_ns: Ints, end_ns: Ints
    ) -> Floats:
        first, last = self.exposed.begin_ns[chosen], self.exposed.end_ns[chosen]
        return covered(first, last, amount_ns[chosen], begin_ns, end_ns)


@dataclass(frozen=True)
class _Passed:
    """A wait of which a part came from other groups."""

    place: int
    row: int
    #: Place of the rank that was waited for.
    late: int
    begin_ns: int
    end_ns: int
    share: float


def origins(
    traces: Sequence[Trace], tables: Sequence[Collectives], arrivals: Sequence[Arrivals]
) -> list[Origins]:
    """Where each rank's waits began.

    Args:
        traces: of the ranks, on a common clock.
        tables: their collectives.
        arrivals: of these.
    """
    exposed = [exposures_of(trace) for trace in traces]
    waits = [split(*each) for each in zip(exposed, tables, arrivals, strict=True)]
    shared = SharedCalls(tables, arrivals, exposed)
    ranks = [
        _Rank(trace.rank, own, waiting, _members(shared, own, waiting, arrived))
        for trace, own, waiting, arrived in zip(traces, exposed, waits, arrivals, strict=True)
    ]
    passed = _passed_on(ranks, shared)
    found: dict[tuple[int, int], Floats] = {}
    for each in sorted(passed, key=lambda one: int(exposed[one.place].end_ns[one.row])):
        found[each.place, each.row] = _shared_out(each, ranks, found)
    return [_origins(place, rank, ranks, found) for place, rank in enumerate(ranks)]


def _members(shared: SharedCalls, exposed: Exposures, waiting: Waiting, arrivals: Arrivals) -> Keys:
    """Those of the deciding collective; where none decided, of the one that was waited for."""
    none = np.full(len(exposed), -1, dtype=np.int64)
    own = arrivals.collective[exposed.collective] if len(arrivals.collective) else none
    number = np.where(
        waiting.number >= 0, waiting.number, np.where(exposed.collective >= 0, own, none)
    )
    return np.where(number >= 0, np.append(shared.members, np.uint64(0))[number], np.uint64(0))


def _passed_on(ranks: Sequence[_Rank], shared: SharedCalls) -> list[_Passed]:
    """Waits for a rank that had been blocked longer by other groups than the one that waits."""
    found: list[_Passed] = []
    places = {rank.rank: place for place, rank in enumerate(ranks)}
    for place, rank in enumerate(ranks):
        waits = (rank.wait_ns > 0) & (rank.waiting.number >= 0)
        waits &= rank.waiting.culprit != rank.rank
        pairs = np.stack([rank.waiting.culprit.astype(np.uint64), rank.members])
        for culprit, key in np.unique(pairs[:, waits], axis=1).T:
            late = places.get(int(culprit))
            if late is None or (ranks[late].members == key).all():
                continue
            rows = np.flatnonzero(waits & (pairs[0] == culprit) & (pairs[1] == key))
            found += _from_others(place, late, rows, ranks, shared)
    return found


def _from_others(
    place: int, late: int, rows: Ints, ranks: Sequence[_Rank], shared: SharedCalls
) -> list[_Passed]:
    waiter, other = ranks[place], ranks[late]
    key, number = waiter.members[rows[0]], waiter.waiting.number[rows]
    known = shared.has(place, number) & shared.has(late, number)
    rows, number = rows[known], number[known]
    end = shared.arrived_ns(late, number)
    moments = shared.synchronised_ns(place, late)
    begin = last_before(moments, np.minimum(shared.arrived_ns(place, number), end))
    from_others = other.elsewhere_ns(key, begin, end) - waiter.elsewhere_ns(key, begin, end)
    # Own is all that is left of two windows of one length.
    own = waiter.here_ns(key, begin, end) - other.here_ns(key, begin, end) - from_others
    through, own = np.maximum(0.0, from_others), np.maximum(0.0, own)
    share = np.where(begin > 0, through / np.maximum(through + own, 1.0), 0.0)
    columns = (rows, begin, end, share)
    return [
        _Passed(place, row, late, begin_ns, end_ns, part)
        for row, begin_ns, end_ns, part in zip(*(each.tolist() for each in columns), strict=True)
        if part > 0
    ]


def _shared_out(
    wait: _Passed, ranks: Sequence[_Rank], found: dict[tuple[int, int], Floats]
) -> Floats:
    """Shares of a wait by the place where it began; they add up to 1."""
    late, exposed = ranks[wait.late], ranks[wait.late].exposed
    key = ranks[wait.place].members[wait.row]
    rows = late.rows_in(wait.begin_ns, wait.end_ns)
    rows = rows[late.members[rows] != key]
    begin, end = exposed.begin_ns[rows], exposed.end_ns[rows]
    inside = np.minimum(end, wait.end_ns) - np.maximum(begin, wait.begin_ns)
    weight = inside / np.maximum(1, end - begin) * late.wait_ns[rows]
    result = np.zeros(len(ranks))
    result[wait.late] = 1 - wait.share if weight.sum() > 0 else 1.0
    places = {rank.rank: place for place, rank in enumerate(ranks)}
    for row, part in zip(rows[weight > 0].tolist(), weight[weight > 0], strict=True):
        share = wait.share * part / weight.sum()
        if (wait.late, row) in found:
            result += share * found[wait.late, row]
        else:
            result[places.get(int(late.waiting.culprit[row]), wait.late)] += share
    return result


def _origins(
    place: int, rank: _Rank, ranks: Sequence[_Rank], found: dict[tuple[int, int], Floats]
) -> Origins:
    wait_ns, culprit = rank.waiting.wait_ns, rank.waiting.culprit
    traced = np.array([row for of, row in found if of == place], dtype=np.int64)
    direct = np.setdiff1d(np.flatnonzero(culprit >= 0), traced)
    parts = np.array([found[place, row] for row in traced.tolist()]).reshape(-1, len(ranks))
    at, where = np.nonzero(parts)
    numbers = np.array([each.rank for each in ranks], dtype=np.int64)
    return Origins(
        np.concatenate((direct, traced[at])),
        np.concatenate((culprit[direct], numbers[where])),
        np.concatenate((wait_ns[direct], wait_ns[traced[at]] * parts[at, where])),
    )
