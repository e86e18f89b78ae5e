"""Finds the points of the program at which two ranks met.

Take a collective in which every rank waits for all ranks, and two of its ranks. When the collective
ends, the training thread of each rank is waiting for the collective, or has not begun to wait. The
two ranks *meet* there if at least one of the two threads is waiting. Third ranks do not matter.
DDP's finalisation counts as one wait for all buckets of its backward pass.

If both threads are waiting, both ranks leave the same point of the program at the same time. If
only one thread is waiting, the other rank is behind. The work of the two ranks is then compared
from the time at which each rank issued the collective. Waiting and transfer at the meeting do not
count.

A meeting can explain a later wait only if both ranks have left the meeting before: the late rank
before it arrives at the later collective, and the waiting rank before it begins to wait.

In a point-to-point message or a collective with a root, two ranks meet when one rank arrives while
the other rank waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.arrivals import Arrivals, BucketArrivals
from commprof.analysis.step.exposure import Exposures, training_threads
from commprof.field_groups import FieldGroup
from commprof.trace import columns
from commprof.trace.columns import Collectives, Ints, tables_of
from commprof.trace.lookup import among, distinct_rows, map_columns, rows_of
from commprof.trace.ranks import Narrow, RankTimes, accumulated, firsts, firsts_of, joined, ranks_of
from commprof.trace.reader import Trace
from commprof.trace.schema import BLOCKED_NS, POINT_TO_POINT, SOME_WAIT

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Stretch(FieldGroup):
    """Intervals of ranks, one interval per wait.

    An interval begins when the rank that waits and the rank that is waited for last met.
    """

    #: 0 if the two ranks have not met.
    begin_ns: Ints
    #: From ``stood_ns`` to ``left_ns``, the training thread waited at the meeting; this time does
    #: not count. Both times equal ``begin_ns`` if there is no such time in the interval.
    stood_ns: Ints
    left_ns: Ints
    end_ns: Ints

    def of(self, rows: Ints) -> Stretch:
        """Returns the stretches of some of the waits."""
        return rows_of(self, rows)

    def moved(self, by_ns: Ints) -> Stretch:
        """Returns the stretches with all times increased by ``by_ns``."""
        return map_columns(lambda time_ns: time_ns + by_ns, self)


@dataclass(frozen=True)
class Wait:
    """Waits of one rank for another rank, one wait per row."""

    #: Index of the rank that waits.
    place: Narrow
    #: Index of the rank that is waited for.
    late: Narrow
    #: Number of the call, the same on all ranks.
    number: Narrow
    #: Time at which the training thread began to wait.
    stood_ns: Ints

    def of(self, rows: slice) -> Wait:
        """Returns some of the waits, with all numbers as 64-bit integers."""
        place, late, number = (
            column[rows].astype(np.int64) for column in (self.place, self.late, self.number)
        )
        return Wait(place, late, number, self.stood_ns[rows])


@dataclass(frozen=True)
class _Stops:
    """Waits of training threads for calls, sorted by rank, then by number of the call."""

    rank: Narrow
    number: Narrow
    begin_ns: Ints
    #: When the thread left its wait: at the call's end if the thread was waiting then, else at the
    #: wait's end.
    left_ns: Ints
    #: True if the thread was already waiting for the call when the call ended.
    stood: Mask

    def of(self, rows: Ints | slice) -> _Stops:
        return rows_of(self, rows)


class _Calls:
    """Calls of all ranks, sorted by rank, then by number of the call."""

    def __init__(
        self,
        traces: Sequence[Trace],
        tables: Sequence[Collectives],
        arrivals: Sequence[Arrivals],
        exposed: Sequence[Exposures],
    ) -> None:
        buckets = [of_rank.buckets for of_rank in arrivals]
        first_call = firsts_of(tables)
        first_bucket = firsts_of(buckets)
        of_call = joined(arrivals, "collective")
        number = _both(of_call, joined(buckets, "number"))
        #: All numbers of calls are smaller than this.
        self.count = 1 + int(number.max(initial=-1))
        rank = _both(ranks_of(first_call), ranks_of(first_bucket))
        rows = _rows(number >= 0)
        key = rank[rows] * self.count + number[rows]
        order = _in_order(key)
        key, rows = key[order], order if isinstance(rows, slice) else rows[order]
        self._first = firsts(np.bincount(rank[rows], minlength=len(traces)))
        del rank
        self.number: Narrow = number[rows].astype(np.int32)
        del number
        self._row: npt.NDArray[np.int32] | None = None
        self._key: Ints | None = None
        if len(traces) * self.count <= _DENSE * len(key):
            self._row = np.full(len(traces) * self.count, -1, dtype=np.int32)
            # If several rows have the same rank and number, the first one counts.
            self._row[key[::-1]] = np.arange(len(key) - 1, -1, -1, dtype=np.int32)
        else:
            self._key = key
        del key
        op = _both(joined(tables, "op"), np.full(int(first_bucket[-1]), -1))[rows]
        #: True for messages and for calls with a root, in which some rank does not wait for all
        #: other ranks.
        self.some_wait = among(op, *SOME_WAIT)
        self.is_message = among(op, *POINT_TO_POINT)
        del op
        self.arrived_ns = _both(joined(tables, "issue_ns"), joined(buckets, "ready_ns"))[rows]
        stops = _stops(traces, tables, buckets, exposed, first_call, of_call, self.count)
        #: When the training thread left its wait for the call; 0 if it did not wait. None if
        #: ``some_wait`` is False for all calls.
        self.left_ns: Ints | None = None
        if self.some_wait.any():
            at = self.rows(stops.rank, stops.number)
            self.left_ns = np.zeros(len(self.number), dtype=np.int64)
            self.left_ns[at] = stops.left_ns
            stops = stops.of(_rows(~self.some_wait[at]))
        self._stops = [stops]

    def taken_stops(self) -> _Stops:
        """Returns the waits for calls without ``some_wait``; can be called only once."""
        return self._stops.pop()

    def rows(self, rank: Narrow, number: Narrow) -> Ints:
        """Returns the row of each rank's call with this number, or -1."""
        key = rank.astype(np.int64) * self.count + number
        if self._row is not None:
            return self._row[key].astype(np.int64)
        if self._key is None or not len(self._key):
            return np.full(len(key), -1)
        row = np.minimum(np.searchsorted(self._key, key), len(self._key) - 1)
        return np.where(self._key[row] == key, row, -1)

    def look_up(self, values: Ints, rank: Narrow, number: Narrow) -> Ints:
        """Returns the entry of each rank's call in the column ``values``; 0 if there is no call."""
        row = self.rows(rank, number)
        return np.where(row >= 0, values[row], 0) if len(values) else np.zeros_like(number)

    def ranks_of_numbers(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Returns, per call number, the sum of ``values`` of the ranks that take part."""
        total, rank = np.zeros(self.count, dtype=np.uint64), ranks_of(self._first)
        # If a rank has several rows of a call, these follow one another: only the first row counts.
        is_first = np.ones(len(rank), dtype=np.bool_)
        is_first[1:] = (self.number[1:] != self.number[:-1]) | (rank[1:] != rank[:-1])
        np.add.at(total, self.number[is_first], values[rank[is_first]])
        return total


def _both(of_calls: Ints, of_buckets: Ints) -> Ints:
    return np.concatenate((of_calls, of_buckets)) if len(of_buckets) else of_calls


def _rows(chosen: Mask) -> Ints | slice:
    """Returns the chosen rows; a slice if all rows are chosen, because a slice needs no copy."""
    return slice(None) if chosen.all() else np.flatnonzero(chosen)


def _in_order(key: Ints) -> Ints | slice:
    is_sorted = (key[1:] >= key[:-1]).all()
    return slice(None) if is_sorted else np.argsort(key, kind="stable")


class SharedCalls:
    """Finds the meetings of pairs of ranks at their collectives and buckets."""

    def __init__(
        self,
        traces: Sequence[Trace],
        tables: Sequence[Collectives],
        arrivals: Sequence[Arrivals],
        exposed: Sequence[Exposures],
    ) -> None:
        """All lists have one entry per rank. Times are on a common clock."""
        self._ranks = len(traces)
        self._calls = _Calls(traces, tables, arrivals, exposed)
        #: Waits, grouped by the set of ranks that take part in the call.
        self._groups = _in_turn(self._calls, self._calls.taken_stops(), len(traces))

    def compared(self, waits: Wait) -> tuple[Stretch, Stretch]:
        """Returns, for each wait, a stretch of the waiting rank and a stretch of the late rank.

        See :meth:`compared_in_parts`.
        """
        return next(self.compared_in_parts(waits, [slice(None)]))

    def compared_in_parts(
        self, waits: Wait, parts: Iterable[slice]
    ) -> Iterator[tuple[Stretch, Stretch]]:
        """Yields, for each part of the waits, the stretches of waiting ranks and of late ranks.

        The stretch of a rank ends when the rank arrives at the call. So both stretches contain the
        same part of the program. For messages, for calls with a root, and for calls that another
        thread issued while the rank waited, the waiting rank's stretch ends when this rank begins
        to wait.
        """
        met_ns = self._met_by_arrival(waits) if self._some_wait.any() else None
        for rows in parts:
            yield self._compared(waits.of(rows), None if met_ns is None else met_ns[rows])

    def _compared(self, waits: Wait, met_ns: Ints | None) -> tuple[Stretch, Stretch]:
        """Like :meth:`compared_in_parts`, for one part; ``met_ns``: see :meth:`_met_by_arrival`."""
        own_ns, arrived_ns = (
            self._calls.look_up(self._calls.arrived_ns, rank, waits.number)
            for rank in (waits.place, waits.late)
        )
        size = len(waits.number)
        sides = tuple(np.zeros((3, size), dtype=np.int64) for _ in range(2))
        latest_ns = np.zeros(size, dtype=np.int64)
        chosen = self._take_part(waits, arrived_ns)
        for group in self._groups:
            both = chosen[group.holds(waits.place[chosen]) & group.holds(waits.late[chosen])]
            for at in range(0, len(both), _CHUNK):
                rows, left_ns, met = self._met_in(group, waits, arrived_ns, both[at : at + _CHUNK])
                later = left_ns > latest_ns[rows]
                latest_ns[rows[later]] = left_ns[later]
                for side, values in zip(sides, met, strict=True):
                    for column, value in zip(side, values, strict=True):
                        column[rows[later]] = value[later]
        if met_ns is not None:
            later = met_ns > latest_ns
            for side in sides:
                side[:, later] = met_ns[later]
        waiting, late = sides
        until = np.where(self._some_wait[waits.number] | (own_ns == 0), waits.stood_ns, own_ns)
        until = np.minimum(until, waits.stood_ns)
        until = np.where(until < waiting[2], waits.stood_ns, until)
        return (
            Stretch(waiting[0], waiting[1], waiting[2], until),
            Stretch(late[0], late[1], late[2], arrived_ns),
        )

    @staticmethod
    def _take_part(waits: Wait, arrived_ns: Ints) -> Ints:
        """Returns the waits for another rank whose arrival is known."""
        return np.flatnonzero((arrived_ns > 0) & (waits.place != waits.late))

    def _met_in(self, group: _InTurn, waits: Wait, arrived_ns: Ints, rows: Ints) -> _Met:
        """Finds the last meeting before each wait of ``rows``, at calls of one set of ranks."""
        turn = np.minimum(
            group.left_by(waits.place[rows], waits.stood_ns[rows]),
            group.left_by(waits.late[rows], arrived_ns[rows]),
        )
        missing = np.arange(len(rows))
        while len(missing := missing[turn[missing] >= 0]):
            both = [side[rows[missing]] for side in (waits.place, waits.late)]
            turn[missing] = np.maximum(*(group.stood_by(side, turn[missing]) for side in both))
            waited = (group.stood_at(side, turn[missing]) >= 0 for side in both)
            missing = missing[~np.logical_and(*waited)]
            turn[missing] -= 1
        rows, turn = rows[turn >= 0], turn[turn >= 0]
        sides = (waits.place[rows], waits.late[rows])
        stood = [group.stood_at(side, turn) > 0 for side in sides]
        together = np.logical_and(*stood)
        met, left_ns = [], np.zeros_like(turn)
        for side, stands in zip(sides, stood, strict=True):
            number, began, left_ns = group.times(side, turn)
            arrived = self._calls.look_up(self._calls.arrived_ns, side, number)
            begin = np.where(together, left_ns, np.minimum(arrived, began))
            stands &= ~together
            met.append((begin, np.where(stands, began, begin), np.where(stands, left_ns, begin)))
        return rows, left_ns, (met[0], met[1])

    @cached_property
    def _some_wait(self) -> Mask:
        """By number of the call: True for messages and collectives with a root."""
        chosen = np.zeros(self._calls.count, dtype=np.bool_)
        chosen[self._calls.number[self._calls.some_wait]] = True
        return chosen

    def _met_by_arrival(self, all_waits: Wait) -> Ints:
        """Returns when the ranks of each wait last met at a message or a call with a root, or 0."""
        waits, calls = all_waits.of(slice(None)), self._calls
        met_ns = np.zeros(len(waits.number), dtype=np.int64)
        arrived_ns = calls.look_up(calls.arrived_ns, waits.late, waits.number)
        rows = self._take_part(waits, arrived_ns)
        here = rows[self._some_wait[waits.number[rows]]]
        if not len(here) or calls.left_ns is None:
            return met_ns
        first, second = (side(waits.place, waits.late) for side in (np.minimum, np.maximum))
        pair = first * self._ranks + second
        concerned = rows[np.isin(pair[rows], pair[here])]
        left_ns = calls.look_up(calls.left_ns, waits.late, waits.number)
        # A rank may continue while its message is sent, and wait for the message much later.
        is_message = calls.look_up(calls.is_message.astype(np.int64), waits.late, waits.number)
        left_ns = np.where((is_message > 0) | (left_ns == 0), arrived_ns, left_ns)
        meetings = dict(_by_value(pair[here]))
        for key, mine in _by_value(pair[concerned]):
            met = here[meetings[key]]
            met = met[np.argsort(arrived_ns[met], kind="stable")]
            mine = concerned[mine]
            # The late rank must have left the meeting too, perhaps long after its arrival.
            left = np.maximum.accumulate(left_ns[met])
            at = np.searchsorted(arrived_ns[met], waits.stood_ns[mine], side="right")
            at = np.minimum(at, np.searchsorted(left, arrived_ns[mine], side="right")) - 1
            met_ns[mine[at >= 0]] = arrived_ns[met[at[at >= 0]]]
        return met_ns


#: Rows of the waits with an earlier meeting; times at which the late rank left the meeting; first
#: three columns of ``Stretch``, for the waiting rank and for the late rank.
_Met = tuple[Ints, Ints, tuple[tuple[Ints, Ints, Ints], tuple[Ints, Ints, Ints]]]

_SEED = 20261124
#: Largest size of the table that finds a call by its rank and number, in entries per recorded call.
_DENSE = 4
#: Number of waits that are handled together.
_CHUNK = 1 << 16


class _InTurn:
    """Waits of one set of ranks for the calls in which exactly these ranks take part.

    The waits are sorted by rank, then by turn. A call's turn is its position among the calls of the
    set, in program order.
    """

    def __init__(self, stops: _Stops, ranks: int) -> None:
        """``ranks``: number of ranks of the job."""
        last_left = np.zeros(1 + int(stops.number.max()), dtype=np.int64)
        np.maximum.at(last_left, stops.number, stops.left_ns)
        used = np.zeros(len(last_left), dtype=np.bool_)
        used[stops.number] = True
        numbers = np.flatnonzero(used)
        # Every rank leaves its waits in program order. Therefore calls that are sorted by the time
        # at which the last rank left are in program order.
        place = np.zeros(len(last_left), dtype=np.int64)
        in_turn = numbers[np.argsort(last_left[numbers], kind="stable")]
        place[in_turn] = np.arange(len(numbers))
        self._numbers = in_turn
        self._turns = len(numbers)
        self._count = np.bincount(stops.rank, minlength=ranks)
        self._first = firsts(self._count)
        key = place[stops.number]
        key += stops.rank.astype(np.int64) * self._turns
        order = _in_order(key)
        stops = stops.of(order)
        #: By row: rank and turn as one number; None if every rank of the set waited for every call.
        self._key: Ints | None = None
        if not (self._count[self._count > 0] == self._turns).all():
            self._key = key[order]
        del key
        self._begin_ns, self._left_ns = stops.begin_ns, stops.left_ns
        stood = np.where(stops.stood, place[stops.number].astype(np.int32), np.int32(-1))
        #: By row: the latest turn up to this row in which the rank was already waiting when the
        #: call ended; -1 if there is none.
        self._last_stood = accumulated(np.maximum, stood, self._first)
        del stood
        left_ns = accumulated(np.maximum, stops.left_ns, self._first)
        some = self._count > 0
        ends = np.zeros((2, ranks), dtype=np.int64)
        ends[:, some] = left_ns[[self._first[:-1][some], self._first[1:][some] - 1]]
        self._times = RankTimes(ends[0], ends[1])
        self._left_key = self._times.key(stops.rank, left_ns)

    def holds(self, rank: Narrow) -> Mask:
        mask: Mask = self._count[rank] > 0
        return mask

    def left_by(self, rank: Narrow, time_ns: Ints) -> Ints:
        """Returns, per time, the turn of the last wait that the rank left up to the time, or -1."""
        row = np.searchsorted(self._left_key, self._times.key(rank, time_ns), side="right") - 1
        return np.where(row >= self._first[rank], self._turn(rank, row), -1)

    def stood_by(self, rank: Narrow, turn: Ints) -> Ints:
        """Returns, per turn, the latest turn up to it with ``stood_at`` 1, or -1."""
        row = self._row(rank, turn)
        return np.where(row >= self._first[rank], self._last_stood[row], -1)

    def stood_at(self, rank: Narrow, turn: Ints) -> Ints:
        """Returns, per turn, 1 if the rank was already waiting when the call ended.

        0 if the rank began to wait later, or if the call's end is unknown. -1 if the rank did not
        wait for the call.
        """
        row = self._row(rank, turn)
        waited = (row >= self._first[rank]) & (self._turn(rank, row) == turn)
        return np.where(waited, (self._last_stood[row] == turn).astype(np.int64), -1)

    def times(self, rank: Narrow, turn: Ints) -> tuple[Ints, Ints, Ints]:
        """Returns, per turn, the number of the call, and the begin and end of the rank's wait."""
        row = self._row(rank, turn)
        return self._numbers[turn], self._begin_ns[row], self._left_ns[row]

    def _turn(self, rank: Narrow, row: Ints) -> Ints:
        if self._key is None:
            return row - self._first[rank]
        return self._key[row] - rank * self._turns

    def _row(self, rank: Narrow, turn: Ints) -> Ints:
        """Returns the row of the rank's last wait up to each turn.

        If there is none, returns the row before the rank's first row.
        """
        if self._key is None:
            return self._first[rank] + turn
        return np.searchsorted(self._key, rank * self._turns + turn, side="right") - 1


def _in_turn(calls: _Calls, stops: _Stops, ranks: int) -> list[_InTurn]:
    """Groups waits by the set of ranks that take part in the call; drops sets of one rank."""
    salt = np.random.default_rng(_SEED).integers(2**63, size=ranks, dtype=np.uint64)
    # The sum of its ranks' random numbers identifies a set of ranks.
    keys = calls.ranks_of_numbers(salt)
    is_used = np.zeros(len(keys), dtype=np.bool_)
    is_used[stops.number] = True
    if len(set(keys[is_used].tolist())) == 1:
        return [_InTurn(stops, ranks)] if stops.rank[0] != stops.rank[-1] else []
    of_sets = (stops.of(rows) for _, rows in _by_value(keys[stops.number]))
    return [_InTurn(some, ranks) for some in of_sets if some.rank[0] != some.rank[-1]]


def _by_value(values: npt.NDArray[np.int64] | npt.NDArray[np.uint64]) -> Iterator[tuple[int, Ints]]:
    if len(values) == 0:
        return
    order = np.argsort(values, kind="stable")
    for rows in np.split(order, 1 + np.flatnonzero(np.diff(values[order]) != 0)):
        yield int(values[rows[0]]), rows


def _stops(
    traces: Sequence[Trace],
    tables: Sequence[Collectives],
    buckets: Sequence[BucketArrivals],
    exposed: Sequence[Exposures],
    first_call: Ints,
    of_call: Ints,
    count: int,
) -> _Stops:
    """Returns the first wait of the training thread for each call.

    ``of_call``: for each collective of all ranks, the number of its call; ``count``: all these
    numbers are smaller than this.
    """
    collective = joined(exposed, "collective")
    waits = _rows((joined(exposed, "graph_task") < 0) & (collective >= 0))
    rank = ranks_of(firsts_of(exposed))[waits]
    row = collective[waits] + first_call[rank]
    del collective
    # A wait that did not block may return long after the end of the call. So its return does not
    # count as the end of the call.
    known_ns = np.where(joined(tables, "end_is_exact"), joined(tables, "end_ns"), 0)
    of_passes = _passes(traces, tables, buckets, of_call, known_ns)
    number, call_ns = of_call[row], known_ns[row]
    del row, known_ns
    begin_ns, end_ns = (joined(exposed, name)[waits] for name in ("begin_ns", "end_ns"))
    if of_passes is not None:
        of_waits = rank, number, begin_ns, end_ns, call_ns
        rank, number, begin_ns, end_ns, call_ns = (
            np.concatenate(parts) for parts in zip(of_waits, of_passes, strict=True)
        )
        del of_waits, of_passes
    rows = _rows(number >= 0)
    key = rank[rows] * count + number[rows]
    if not (key[1:] > key[:-1]).all():
        order = np.lexsort((begin_ns[rows], key))
        order = order[np.flatnonzero(np.diff(key[order], prepend=-1))]
        rows = order if isinstance(rows, slice) else rows[order]
    del key
    rank, number = rank[rows].astype(np.int32), number[rows].astype(np.int32)
    begin_ns, end_ns, call_ns = (column[rows] for column in (begin_ns, end_ns, call_ns))
    stood = (call_ns > 0) & (np.minimum(end_ns, call_ns) - begin_ns >= BLOCKED_NS)
    left_ns = np.where(stood, np.minimum(end_ns, call_ns), end_ns)
    return _Stops(rank, number, begin_ns, left_ns, stood)


def _passes(
    traces: Sequence[Trace],
    tables: Sequence[Collectives],
    buckets: Sequence[BucketArrivals],
    of_call: Ints,
    known_ns: Ints,
) -> tuple[Ints, Ints, Ints, Ints, Ints] | None:
    """Returns DDP's finalisations in five columns; None if there are none.

    The columns are: the rank; the largest number of a call in the backward pass, or -1 if the pass
    has no calls; the start; the end; the end of the pass's last call. ``known_ns``: end of each
    collective, 0 if unknown.
    """
    passes = tables_of(traces, columns.finalizations)
    first_pass = firsts_of(passes)
    if not first_pass[-1]:
        return None
    thread = training_threads(traces)
    rank = ranks_of(first_pass)
    key = joined(passes, "span.key")
    mine = np.flatnonzero(joined(passes, "span.thread") == thread[rank])
    mine = mine[np.lexsort((key[mine], rank[mine]))]
    task = np.where(among(joined(tables, "op"), *SOME_WAIT), -1, joined(tables, "graph_task"))
    task = np.concatenate((task, joined(buckets, "graph_task")))
    number = np.concatenate((of_call, joined(buckets, "number")))
    call_ns = np.concatenate((known_ns, joined(buckets, "end_ns")))
    rank_of_call = np.concatenate([ranks_of(firsts_of(some)) for some in (tables, buckets)])
    rows = np.flatnonzero(number >= 0)
    equal, first = distinct_rows(
        np.concatenate((rank[mine], rank_of_call[rows])), np.concatenate((key[mine], task[rows]))
    )
    at = first[equal[len(mine) :]]
    rows, at = rows[at < len(mine)], at[at < len(mine)]
    last = np.full(len(mine), -1, dtype=np.int64)
    last_call_ns = np.zeros(len(mine), dtype=np.int64)
    np.maximum.at(last, at, number[rows])
    np.maximum.at(last_call_ns, at, call_ns[rows])
    begin_ns, end_ns = (joined(passes, f"span.{name}")[mine] for name in ("begin_ns", "end_ns"))
    return rank[mine], last, begin_ns, end_ns, last_call_ns
