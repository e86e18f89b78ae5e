"""Replays the recorded programs of all ranks, which wait for each other in collectives.

Two conditions must hold before a collective begins on a rank. All ranks that this rank waits for
have issued the collective, and the previous collective of the group is complete on this rank. The
collective then takes its recorded time. A rank that waits for the collective continues after the
completion, with the recorded delay. Without changes by the caller, every event happens at its
recorded time.

A rank's own time is a clock that stops while the rank waits for communication, see
:mod:`commprof.analysis.replay.program`.

A :class:`Line` models one link. At most ``workers`` collectives are in progress at a time, in order
of issue. Each collective has the link to itself for its ``transfer`` time, and completes
``latency`` later. During the latency, the next collective can use the link. In reality, two
collectives may share the link. The first one then completes later than in this model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.matching import held_up_by
from commprof.analysis.replay.program import ISSUE, MARK, STAND, Events, Program, Programs
from commprof.analysis.step.measured import MeasuredWorld
from commprof.trace.columns import Ints
from commprof.trace.lookup import among, distinct_rows
from commprof.trace.ranks import joined
from commprof.trace.schema import POINT_TO_POINT

try:
    from commprof._reading import ReplayPlan as NativePlan
except ImportError:  # the C++ module is not built, or too old: ``_Run`` replays in Python
    NativePlan = None  # type: ignore[assignment,misc]


class Line:
    """Queue for the collectives of one group. All times are arrays over the replayed steps."""

    def __init__(self, steps: int, workers: int) -> None:
        """Creates ``steps`` empty queues; each serves up to ``workers`` collectives at a time."""
        self._link_free = np.zeros(steps)
        self._free = np.zeros((workers, steps))
        self._rows = np.arange(steps)

    def serve(self, arrived: Floats, transfer: Floats | float, latency: Floats | float) -> Floats:
        """Returns the completion time of the next collective in each step.

        Args:
            arrived: earliest time at which the collective can begin, in any unit.
            transfer: duration for which the collective uses the link, in the same unit.
            latency: duration from the end of ``transfer`` to the completion, in the same unit.
        """
        if len(self._free) == 1:
            worker: npt.NDArray[np.int64] | int = 0
            free = self._free[0]
        else:
            worker = self._free.argmin(axis=0)
            free = self._free[worker, self._rows]
        start = np.maximum(arrived, free)
        self._link_free = np.maximum(start, self._link_free) + transfer
        end: Floats = self._link_free + latency
        if isinstance(worker, int):
            self._free[0] = end
        else:
            self._free[worker, self._rows] = end
        return end


Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
#: A number, or an array with one value per randomly drawn step.
Time = Any


@dataclass(frozen=True)
class Condition:
    """The rows ``opens`` can begin once all rows ``needed`` are issued.

    A row is one rank's call of a collective: an index into the joined tables of all ranks.
    """

    needed: tuple[int, ...]
    opens: tuple[int, ...]


@dataclass(frozen=True)
class Lists:
    """Many lists of rows: list k is ``rows[first[k]:first[k + 1]]``. No list is empty."""

    first: Ints
    rows: Ints

    @classmethod
    def of(cls, rows: Ints, lengths: Ints) -> Lists:
        """Cuts rows into lists of these lengths."""
        return cls(np.concatenate(([0], np.cumsum(lengths))).astype(np.int64), rows)

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def lengths(self) -> Ints:
        """Number of rows in each list."""
        return np.diff(self.first)

    def chosen(self, lists: Mask) -> Lists:
        """Returns the lists for which the mask is True."""
        return Lists.of(self.rows[np.repeat(lists, self.lengths)], self.lengths[lists])


class Conditions(Sequence[Condition]):
    """Many conditions, in two tables."""

    def __init__(self, needed: Lists, opens: Lists) -> None:
        self.needed, self.opens = needed, opens

    def __len__(self) -> int:
        return len(self.needed)

    def __getitem__(self, number: Any) -> Any:
        needed, opens = (
            each.rows[each.first[number] : each.first[number + 1]].tolist()
            for each in (self.needed, self.opens)
        )
        return Condition(tuple(needed), tuple(opens))

    def opening(self, outside: Mask) -> Conditions:
        """Returns the conditions that open at least one row that is not ``outside``."""
        if len(self) == 0:
            return self
        chosen = np.logical_or.reduceat(~outside[self.opens.rows], self.opens.first[:-1])
        return Conditions(self.needed.chosen(chosen), self.opens.chosen(chosen))


@dataclass(frozen=True)
class ReplayedCalls:
    """Every collective of every rank, with the data that a replay needs."""

    conditions: Sequence[Condition]
    #: By row: the previous row of the group on the same rank, which must complete first; -1 for
    #: none.
    before: Ints
    issue_ns: Ints
    #: Time from the begin of the row to its completion.
    transfer_ns: Floats
    end_ns: Ints
    #: True for rows that were issued outside of the replayed steps. Such rows keep their times.
    outside: Mask
    #: Index of the process group, as in ``Matching``.
    group: Ints
    #: Used if collectives are queued in a ``Line``: time from the end of ``transfer_ns`` to the
    #: completion. None if each collective begins once the previous one is complete.
    latency_ns: Floats | None = None
    #: Number of collectives that run at the same time in each ``Line``.
    workers: int = 1
    #: Cache for replays in C++: events and plan of the last replay. Empty before the first replay.
    _plans: list[tuple[Events, Any]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )


def calls(seen: MeasuredWorld, stretches: Sequence[Sequence[Program]]) -> list[ReplayedCalls]:
    """Returns the collectives of all ranks, for the replay of each stretch of steps.

    ``stretches``: for each stretch, the programs of all ranks.
    """
    issue, end = (joined(seen.tables, name) for name in ("issue_ns", "end_ns"))
    op = joined(seen.tables, "op")
    end = np.maximum(end, issue)
    conditions = _conditions(seen, issue)
    begins = issue.astype(np.float64)
    if len(conditions):
        issued = np.maximum.reduceat(issue[conditions.needed.rows], conditions.needed.first[:-1])
        begins[conditions.opens.rows] = np.repeat(issued, conditions.opens.lengths)
    end = _completed(seen, end, begins)
    before = _before(seen, op, end)
    queued = np.where(before >= 0, end[before], 0) if len(end) else end
    transfer = (end - np.maximum(begins, queued)).astype(np.float64)
    outside = [_outside(seen, issue, ranks) for ranks in stretches]
    conditions = conditions.opening(np.logical_and.reduce(outside))
    return [
        ReplayedCalls(
            conditions.opening(mask), before, issue, transfer, end, mask, seen.matching.group
        )
        for mask in outside
    ]


def _completed(seen: MeasuredWorld, end: Ints, begins: Floats) -> Ints:
    """Returns the completion time of each row, estimated if it was not recorded.

    Without a recorded completion, ``end`` is the end of a wait, which may come long after the
    completion. The latest recorded end of the same collective is then used if it is earlier.
    """
    exact = joined(seen.tables, "end_is_exact")
    if exact.all():
        return end
    member = seen.matching.member
    known = np.zeros(len(seen.matching.complete), dtype=np.int64)
    np.maximum.at(known, member[exact], end[exact])
    earliest = np.maximum(np.where(seen.matching.complete, known, 0)[member], begins)
    return np.where(exact, end, np.minimum(end, earliest)).astype(np.int64)


def _outside(seen: MeasuredWorld, issue: Ints, ranks: Sequence[Program]) -> Mask:
    if isinstance(ranks, Programs):
        begins_ns, until_ns = ranks.begin_ns, ranks.until_ns
    else:
        begins_ns, until_ns = (
            np.array([getattr(each, name) for each in ranks]) for name in ("begin_ns", "until_ns")
        )
    lengths = seen.matching.lengths
    first, last = np.repeat(begins_ns, lengths), np.repeat(until_ns, lengths)
    mask: Mask = (issue < first) | (issue >= last)
    return mask


def _conditions(seen: MeasuredWorld, issue: Ints) -> Conditions:
    matching = seen.matching
    left = np.ones(len(issue), dtype=bool)
    needed, needs, opens, opened = [], [], [], []
    for grid, held_up in held_up_by(matching, seen.traces, seen.tables, issue):
        left[grid] = False
        call, _, other = np.nonzero(held_up)
        needed.append(grid[call, other])
        needs.append(held_up.sum(axis=2).ravel())
        opens.append(grid.ravel())
        opened.append(np.ones(grid.size, dtype=np.int64))
    rows = np.flatnonzero(left)
    member = matching.member[rows]
    # The rows of a complete collective share a condition; every other row has a condition of its
    # own.
    number, _ = distinct_rows(
        member, np.where(matching.complete[member], 0, 1 + np.arange(len(rows)))
    )
    rows, count = rows[np.argsort(number, kind="stable")], np.bincount(number)
    joined = (
        np.concatenate([*some, last]).astype(np.int64)
        for some, last in ((needed, rows), (needs, count), (opens, rows), (opened, count))
    )
    needed_rows, needed_count, opens_rows, opens_count = joined
    return Conditions(Lists.of(needed_rows, needed_count), Lists.of(opens_rows, opens_count))


def _before(seen: MeasuredWorld, op: Ints, end: Ints) -> Ints:
    """Returns the previous row of the same group on the same rank; -1 if there is none.

    Also -1 if the previous row ended after the row itself. Point-to-point operations do not count.
    """
    before = np.full(len(op), -1, dtype=np.int64)
    rank = np.repeat(np.arange(len(seen.tables)), seen.matching.lengths)
    rows = np.flatnonzero(~among(op, *POINT_TO_POINT))
    group = seen.matching.group
    if not len(rows) or (group[rows] == group[rows[0]]).all():
        same = rank[rows[1:]] == rank[rows[:-1]]  # with one group, rows are sorted by rank
    else:
        rows = rows[np.lexsort((rows, group[rows], rank[rows]))]
        later, earlier = rows[1:], rows[:-1]
        same = (rank[later] == rank[earlier]) & (group[later] == group[earlier])
    del rank
    later, earlier = rows[1:][same], rows[:-1][same]
    in_turn = end[later] >= end[earlier]
    before[later[in_turn]] = earlier[in_turn]
    return before


def replay(
    ranks: Sequence[Program],
    known: ReplayedCalls,
    own_ns: Floats | None = None,
    free: Mask | None = None,
) -> Floats | None:
    """Returns the wall time of each step in ns, mean over ranks; None if the ranks deadlock.

    Args:
        ranks: programs of all ranks.
        known: collectives of all ranks.
        own_ns: own time of all events, rank by rank; None for the recorded own times.
        free: True for rows whose transfer takes no time; None for no rows.
    """
    steps = ranks[0].steps
    if NativePlan is not None and known.latency_ns is None:
        return _replayed(ranks, known, steps, own_ns, free)
    own = [rank.own_ns for rank in ranks]
    if own_ns is not None:
        own = np.split(own_ns, Events.of(ranks).first[1:-1])
    run = _Run(ranks, known, steps, own, free)
    run.go()
    if any(at < len(rank.kind) for at, rank in zip(run.at, ranks, strict=True)):
        return None
    marks: Floats = np.array(run.marks).reshape(len(ranks), steps, 2)
    result: Floats = (marks[:, :, 1] - marks[:, :, 0]).mean(axis=0)
    return result


def _replayed(
    ranks: Sequence[Program],
    known: ReplayedCalls,
    steps: int,
    own_ns: Floats | None,
    free: Mask | None,
) -> Floats | None:
    """Replays in C++; the result is that of ``_Run`` in Python."""
    events = Events.of(ranks)
    marks = _plan(events, known, steps).times(
        own=events.own_ns if own_ns is None else own_ns,
        extra=events.extra_ns,
        transfer=known.transfer_ns,
        free=free,
    )
    if marks is None:
        return None
    times = marks.reshape(len(ranks), steps, 2)
    result: Floats = (times[:, :, 1] - times[:, :, 0]).mean(axis=0)
    return result


def _plan(events: Events, known: ReplayedCalls, steps: int) -> NativePlan:
    """Prepares a replay in C++; returns the last plan again if the events are the same."""
    if known._plans and known._plans[0][0] is events:
        return known._plans[0][1]
    conditions = known.conditions
    if not isinstance(conditions, Conditions):
        needed, opens = (
            Lists.of(
                np.array([row for rows in lists for row in rows], dtype=np.int64),
                np.array(list(map(len, lists)), dtype=np.int64),
            )
            for lists in ([c.needed for c in conditions], [c.opens for c in conditions])
        )
        conditions = Conditions(needed, opens)
    plan = NativePlan(
        first=events.first,
        kind=events.kind,
        row=events.row,
        begin=events.begin_ns.astype(np.float64),
        chained=events.chained,
        after=events.after,
        lag=events.lag_ns,
        needed_first=conditions.needed.first,
        needed=conditions.needed.rows,
        opens_first=conditions.opens.first,
        opens=conditions.opens.rows,
        before=known.before,
        issue=known.issue_ns,
        end=known.end_ns,
        outside=known.outside,
        marks=2 * steps,
    )
    known._plans[:] = [(events, plan)]
    return plan


@dataclass(frozen=True)
class DrawnSteps:
    """Times ``[rank, drawn step]`` in ns of randomly drawn steps."""

    #: Time of the rank's last event.
    end_ns: Floats
    #: Time for which the rank waited for communication.
    stood_ns: Floats


def replay_drawn(ranks: Sequence[Program], known: ReplayedCalls, steps: int) -> DrawnSteps:
    """Replays many randomly drawn steps together; each drawn step is one column.

    Args:
        ranks: programs of all ranks for one step. ``own_ns`` and ``extra_ns`` have a row per event
            and a column per drawn step. Each program must end with the end of the step: kind MARK,
            with ``row`` 1.
        known: collectives of all ranks. ``transfer_ns`` has a column per drawn step.
        steps: number of drawn steps.

    Raises:
        ValueError: ranks wait for each other forever.
    """
    run = _Run(ranks, known, 1, [each.own_ns for each in ranks], None, steps)
    run.go()
    if any(at < len(rank.kind) for at, rank in zip(run.at, ranks, strict=True)):
        raise ValueError("the ranks of a replay wait for each other forever")
    ends = np.stack([np.broadcast_to(marks[1], steps) for marks in run.marks])
    return DrawnSteps(ends, np.stack([np.broadcast_to(each, steps) for each in run.stood]))


class _Run:
    """State of one replay, in lists rather than arrays, because events are handled one by one."""

    def __init__(
        self,
        ranks: Sequence[Program],
        known: ReplayedCalls,
        steps: int,
        own_ns: Sequence[Floats],
        free: Mask | None,
        drawn: int = 0,
    ) -> None:
        """Prepares a replay.

        ``drawn``: number of randomly drawn steps. Each time is an array with one value per drawn
        step. If ``drawn`` is 0, each time is one number.
        """
        self._later: Callable[[Time, Time], Time] = np.maximum if drawn else max
        self._known = known
        self._before = known.before.tolist()
        self._events = [
            list(zip(rank.kind.tolist(), rank.row.tolist(), _each(own), extra, strict=True))
            for rank, own, extra in (
                (
                    rank,
                    own,
                    _each(
                        rank.extra_ns
                        if free is None
                        else _extra(rank.kind, rank.row, rank.extra_ns, free)
                    ),
                )
                for rank, own in zip(ranks, own_ns, strict=True)
            )
        ]
        self.at = [0] * len(ranks)
        self.marks: list[list[Time]] = [[0.0] * (2 * steps) for _ in ranks]
        self.stood: list[Time] = [float(rank.begin_ns) for rank in ranks]
        transfer = known.transfer_ns if free is None else np.where(free, 0.0, known.transfer_ns)
        inside = np.flatnonzero(~known.outside)
        self._transfer = dict(zip(inside.tolist(), _each(transfer[inside]), strict=True))
        self._latency = None if known.latency_ns is None else _each(known.latency_ns)
        self._lines: list[Line] = []
        if self._latency is not None:
            self._lines = _lines(known, drawn)
        self._end = _Ends(dict.fromkeys(inside.tolist()), known.end_ns)
        self._begins: dict[int, Time] = {}
        self._missing = [0] * len(known.conditions)
        self._arrived: list[Time] = [0.0] * len(known.conditions)
        self._needing: dict[int, list[int]] = {}
        self._queued: dict[int, list[int]] = {}
        self._waiting: dict[int, list[int]] = {}
        self._chained: dict[int, list[tuple[int, float]]] = {}
        for rank in ranks:
            columns = (rank.chained.tolist(), rank.after.tolist(), rank.lag_ns.tolist())
            for row, after, lag in zip(*columns, strict=True):
                self._chained.setdefault(after, []).append((row, float(lag)))
        self._completed: list[int] = []
        self._ready = deque(range(len(ranks)))

    def go(self) -> None:
        known = self._known
        for number, each in enumerate(known.conditions):
            needed = [row for row in each.needed if not known.outside[row]]
            before = [int(known.issue_ns[row]) for row in each.needed if known.outside[row]]
            self._missing[number] = len(needed)
            self._arrived[number] = float(max(before, default=0))
            for row in needed:
                self._needing.setdefault(row, []).append(number)
            if not needed:
                self._open(number)
        for after in self._chained:
            if self._end[after] is not None:
                self._completed.append(after)
        self._settle()
        while self._ready:
            self._advance(self._ready.popleft())

    def _advance(self, rank: int) -> None:
        events = self._events[rank]
        while self.at[rank] < len(events):
            kind, row, own, extra = events[self.at[rank]]
            now = own + self.stood[rank]
            if kind == ISSUE:
                self._issued(row, now)
                self._settle()
            elif kind == MARK:
                self.marks[rank][row] = now
            elif kind == STAND:
                self.stood[rank] = self.stood[rank] + extra
            else:
                end = self._end[row]
                if end is None:
                    self._waiting.setdefault(row, []).append(rank)
                    return
                self.stood[rank] = self.stood[rank] + self._later(0.0, end + extra - now)
            self.at[rank] += 1

    def _issued(self, row: int, now: Time) -> None:
        for number in self._needing.get(row, ()):
            self._arrived[number] = self._later(self._arrived[number], now)
            self._missing[number] -= 1
            if self._missing[number] == 0:
                self._open(number)

    def _open(self, number: int) -> None:
        for row in self._known.conditions[number].opens:
            self._begin(row, self._arrived[number])

    def _begin(self, row: int, now: Time) -> None:
        if self._end[row] is not None:
            return  # the row keeps its recorded end
        before = self._before[row]
        queued = self._end[before] if before >= 0 else 0.0
        if queued is None:
            self._begins[row] = now
            self._queued.setdefault(before, []).append(row)
            return
        if self._latency is None:
            self._complete(row, self._later(now, queued) + self._transfer[row])
        else:
            end = self._lines[row].serve(now, self._transfer[row], self._latency[row])
            self._complete(row, end)

    def _complete(self, row: int, end: Time) -> None:
        self._end[row] = end
        self._completed.append(row)

    def _settle(self) -> None:
        while self._completed:
            row = self._completed.pop()
            end: Time = self._end[row]
            for later in self._queued.pop(row, ()):
                self._begin(later, self._begins[later])
            for chained, lag in self._chained.get(row, ()):
                self._issued(chained, end + lag)
            self._ready.extend(self._waiting.pop(row, ()))


class _Ends(dict[int, "Time | None"]):
    """Completion time of each row in ns; None for a replayed row that is not complete yet."""

    def __init__(self, replayed: dict[int, None], recorded_ns: Ints) -> None:
        super().__init__(replayed)
        self._recorded_ns = recorded_ns

    def __missing__(self, row: int) -> float:
        return float(self._recorded_ns[row])


def _each(values: Floats) -> list[Time]:
    return values.tolist() if values.ndim == 1 else list(values)


def _lines(known: ReplayedCalls, drawn: int) -> list[Line]:
    """Returns the queue of each row. A row without a predecessor gets a new queue."""
    found: list[Line] = []
    for before in known.before.tolist():
        found.append(found[before] if before >= 0 else Line(drawn, known.workers))
    return found


def _extra(kind: Ints, row: Ints, extra_ns: Floats, free: Mask) -> Floats:
    """Returns ``Program.extra_ns`` with positive delays set to 0 after ``free`` collectives."""
    waits = (row >= 0) & (kind != MARK)
    without = np.zeros(len(row), dtype=bool)
    without[waits] = free[row[waits]]
    changed: Floats = np.where(without, np.minimum(extra_ns, 0), extra_ns)
    return changed
