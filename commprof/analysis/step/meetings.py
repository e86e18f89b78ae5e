"""Points of the program at which two ranks met.

Consider a collective in which every rank waits for all ranks, and two of its ranks. When it ends,
the training thread of each of the two stands at its wait for the collective, or has yet to reach
this wait. The two ranks *meet* there if at least one of the threads stands. (DDP's finalisation is
one wait for all buckets of its backward pass, and ends with the last of them.) What third ranks do
makes no difference: a rank that is still in backward when another rank waits for an early bucket
does not meet this rank there.

If both threads stand, both ranks leave the same point of the program at the same time. If only one
stands, the other rank is behind: between its issue of the collective and its wait. The work of the
two is then compared from the time at which each of them issued the collective, and waiting and
transfer in the standing do not count.

A meeting counts for a later wait if both ranks have left it before: the late rank before it arrives
at the later collective, the waiting rank before it begins to wait. So the ranks do not meet between
two buckets of one backward pass: each issues all of them before it waits for the first.

In a point-to-point message or a collective with a root, two ranks meet when one arrives while the
other waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.arrivals import Arrivals
from commprof.analysis.step.exposure import Exposures, training_thread
from commprof.trace import columns
from commprof.trace.columns import Collectives, Ints
from commprof.trace.lookup import among
from commprof.trace.reader import Trace
from commprof.trace.schema import BLOCKED_NS, POINT_TO_POINT, SOME_WAIT

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Stretch:
    """The time of one rank, per wait, that is compared with another rank's since they last met."""

    #: 0 if the two ranks have not met before.
    begin_ns: Ints
    #: The rank stood at the meeting from here to ``left_ns``; its waiting and transfer there do not
    #: count. Both equal ``begin_ns`` if it did not stand, or if the stretch begins as it left.
    stood_ns: Ints
    left_ns: Ints
    end_ns: Ints

    def of(self, rows: Ints) -> Stretch:
        """Returns the stretches of some of the waits."""
        return Stretch(*(part[rows] for part in self._parts))

    def moved(self, by_ns: Ints) -> Stretch:
        """Returns the stretches later by these times."""
        return Stretch(*(part + by_ns for part in self._parts))

    @property
    def _parts(self) -> tuple[Ints, Ints, Ints, Ints]:
        return self.begin_ns, self.stood_ns, self.left_ns, self.end_ns


@dataclass(frozen=True)
class Wait:
    """Waits, one per row, of one rank for another."""

    #: Index of the rank that waits.
    place: Ints
    #: Index of the rank that it waits for.
    late: Ints
    #: Number of the call.
    number: Ints
    #: Time at which the training thread began to wait.
    stood_ns: Ints


@dataclass(frozen=True)
class _Stops:
    """Calls of one rank for which its training thread waited, one row per call, by number.

    Only calls that all ranks of the call wait for.
    """

    number: Ints
    arrived_ns: Ints
    begin_ns: Ints
    #: When the thread left: the call's end if the thread stood there then, else the wait's end.
    left_ns: Ints
    #: True if the thread stood there when the call ended.
    stood: Mask

    def of(self, rows: Ints | Mask) -> _Stops:
        """Returns some of the rows."""
        return _Stops(
            self.number[rows],
            self.arrived_ns[rows],
            self.begin_ns[rows],
            self.left_ns[rows],
            self.stood[rows],
        )


@dataclass(frozen=True)
class _Calls:
    """Calls of one rank, by number."""

    number: Ints
    arrived_ns: Ints
    #: When the training thread left its wait for the call; 0 if it did not wait.
    left_ns: Ints
    #: True for calls in which not all ranks wait for all: messages, and collectives with a root.
    some_wait: Mask
    is_message: Mask
    stops: _Stops

    def look_up(self, values: Ints, number: Ints) -> Ints:
        """Returns the entry of ``values``, a column, per call; 0 for calls of other ranks."""
        if len(self.number) == 0:
            return np.zeros_like(number)
        row = np.minimum(np.searchsorted(self.number, number), len(self.number) - 1)
        return np.where(self.number[row] == number, values[row], 0)


class SharedCalls:
    """Collectives and buckets that several ranks take part in, and where pairs of ranks met."""

    def __init__(
        self,
        traces: Sequence[Trace],
        tables: Sequence[Collectives],
        arrivals: Sequence[Arrivals],
        exposed: Sequence[Exposures],
    ) -> None:
        """All lists have one entry per rank. Times are on a common clock."""
        self._ranks = [
            _calls(*of_rank) for of_rank in zip(traces, tables, arrivals, exposed, strict=True)
        ]
        self._count = 1 + max(int(rank.number.max(initial=-1)) for rank in self._ranks)

    def compared(self, waits: Wait) -> tuple[Stretch, Stretch]:
        """Finds the time of each waiting rank, and of its late rank, that explains the wait.

        The late rank's time ends as it arrives at the call. The waiting rank's time ends as it
        arrives at the call itself, so that both stretches hold the same part of the program; or,
        for messages, calls with a root, and calls that another thread issued while it waited, as it
        begins to wait.
        """
        own_ns = self._by_rank(waits.place, waits, lambda rank: rank.arrived_ns)
        arrived_ns = self._by_rank(waits.late, waits, lambda rank: rank.arrived_ns)
        size = len(waits.number)
        sides = tuple(np.zeros((3, size), dtype=np.int64) for _ in range(2))
        latest_ns = np.zeros(size, dtype=np.int64)
        takes_part = (arrived_ns > 0) & (waits.place != waits.late)
        for rows, left_ns, met in self._met(waits, arrived_ns, np.flatnonzero(takes_part)):
            later = left_ns > latest_ns[rows]
            latest_ns[rows[later]] = left_ns[later]
            for side, values in zip(sides, met, strict=True):
                side[:, rows[later]] = np.stack(values)[:, later]
        waiting, late = sides
        until = np.where(self._some_wait[waits.number] | (own_ns == 0), waits.stood_ns, own_ns)
        until = np.minimum(until, waits.stood_ns)
        until = np.where(until < waiting[2], waits.stood_ns, until)
        return (
            Stretch(waiting[0], waiting[1], waiting[2], until),
            Stretch(late[0], late[1], late[2], arrived_ns),
        )

    def _by_rank(self, ranks: Ints, waits: Wait, column: Callable[[_Calls], Ints]) -> Ints:
        """Looks up, per wait, a column of one of its ranks for its call."""
        result = np.zeros_like(waits.number)
        for place, rows in _by_value(ranks):
            rank = self._ranks[place]
            result[rows] = rank.look_up(column(rank), waits.number[rows])
        return result

    def _met(self, waits: Wait, arrived_ns: Ints, rows: Ints) -> Iterator[_Met]:
        """Yields the last meetings, at each kind of call, before the waits of ``rows``."""
        for group in self._groups:
            inside = np.zeros(len(self._ranks), dtype=np.bool_)
            inside[list(group)] = True
            chosen = rows[inside[waits.place[rows]] & inside[waits.late[rows]]]
            yield from _met_in(group, waits, arrived_ns, chosen)
        yield from self._met_by_arrival(waits, arrived_ns, rows)

    @cached_property
    def _some_wait(self) -> Mask:
        """Mask by number: True for messages and collectives with a root."""
        chosen = np.zeros(self._count, dtype=np.bool_)
        for rank in self._ranks:
            chosen[rank.number[rank.some_wait]] = True
        return chosen

    @cached_property
    def _groups(self) -> list[dict[int, _InTurn]]:
        """Per set of ranks: each rank's waits for the calls of just these ranks."""
        salt = np.random.default_rng(_SEED).integers(2**63, size=len(self._ranks), dtype=np.uint64)
        key = np.zeros(self._count, dtype=np.uint64)
        for rank, own in zip(self._ranks, salt, strict=True):
            key[rank.number] += own  # equal sets of ranks, and only these, have one sum
        parts: dict[int, dict[int, _Stops]] = {}
        for place, rank in enumerate(self._ranks):
            keys = key[rank.stops.number]
            for each, rows in _by_value(keys):
                parts.setdefault(each, {})[place] = rank.stops.of(rows)
        return [_in_turn(of_ranks) for of_ranks in parts.values() if len(of_ranks) > 1]

    def _met_by_arrival(self, waits: Wait, arrived_ns: Ints, rows: Ints) -> Iterator[_Met]:
        """Yields the last meetings at which one rank arrived and the other waited for it."""
        first, second = (side(waits.place, waits.late) for side in (np.minimum, np.maximum))
        pair = first * len(self._ranks) + second
        here = rows[self._some_wait[waits.number[rows]]]
        concerned = rows[np.isin(pair[rows], pair[here])]
        left_ns = self._by_rank(waits.late, waits, lambda rank: rank.left_ns)
        # A rank may go on while its message is sent, and wait for that much later.
        is_message = self._by_rank(waits.late, waits, lambda rank: rank.is_message.astype(np.int64))
        left_ns = np.where((is_message > 0) | (left_ns == 0), arrived_ns, left_ns)
        meetings = dict(_by_value(pair[here]))
        for key, mine in _by_value(pair[concerned]):
            met = here[meetings[key]]
            met = met[np.argsort(arrived_ns[met], kind="stable")]
            mine = concerned[mine]
            # The rank that was late may have left later than the other one.
            left = np.maximum.accumulate(left_ns[met])
            at = np.searchsorted(arrived_ns[met], waits.stood_ns[mine], side="right")
            at = np.minimum(at, np.searchsorted(left, arrived_ns[mine], side="right")) - 1
            mine, at = mine[at >= 0], at[at >= 0]
            moment_ns = arrived_ns[met[at]]
            yield mine, moment_ns, ((moment_ns,) * 3, (moment_ns,) * 3)


#: Rows of waits that ranks had met before; when the late rank left the meeting; and the first three
#: columns of ``Stretch`` for the waiting rank and for the late one.
_Met = tuple[Ints, Ints, tuple[tuple[Ints, Ints, Ints], tuple[Ints, Ints, Ints]]]

_SEED = 20261124


class _InTurn:
    """One rank's waits for the calls of one set of ranks, in the order of the program."""

    def __init__(self, stops: _Stops, turn: Ints) -> None:
        """``turn``: the place of each wait in this order, the same on all ranks."""
        order = np.argsort(turn)
        self._stops, self._turn = stops.of(order), turn[order]
        self._left_ns = np.maximum.accumulate(self._stops.left_ns)
        stood = np.where(self._stops.stood, self._turn, -1)
        self._last_stood = np.maximum.accumulate(stood)

    def left_by(self, time_ns: Ints) -> Ints:
        """Returns, per time, the turn of the last wait that the rank has left by then, or -1."""
        return self._value(self._turn, np.searchsorted(self._left_ns, time_ns, side="right"))

    def stood_by(self, turn: Ints) -> Ints:
        """Returns, per turn, the turn of the last wait up to it at which the rank stood, or -1."""
        return self._value(self._last_stood, np.searchsorted(self._turn, turn, side="right"))

    def stood_at(self, turn: Ints) -> Ints:
        """Returns 1 for the turns at which the rank stood, 0 at its other waits, -1 else."""
        row = np.minimum(np.searchsorted(self._turn, turn), len(self._turn) - 1)
        return np.where(self._turn[row] == turn, self._stops.stood[row].astype(np.int64), -1)

    def times(self, turn: Ints) -> tuple[Ints, Ints, Ints]:
        """Returns, per turn, when the rank arrived, began to wait, and left."""
        rows = self._stops.of(np.searchsorted(self._turn, turn))
        return np.minimum(rows.arrived_ns, rows.begin_ns), rows.begin_ns, rows.left_ns

    @staticmethod
    def _value(values: Ints, count: Ints) -> Ints:
        return np.concatenate(([-1], values))[count].astype(np.int64)


def _in_turn(stops: dict[int, _Stops]) -> dict[int, _InTurn]:
    """Puts the waits of all ranks in the order of the program."""
    numbers = np.unique(np.concatenate([rows.number for rows in stops.values()]))
    last_left = np.zeros(len(numbers), dtype=np.int64)
    at = {place: np.searchsorted(numbers, rows.number) for place, rows in stops.items()}
    for place, rows in stops.items():
        last_left[at[place]] = np.maximum(last_left[at[place]], rows.left_ns)
    # Each rank leaves its waits in this order, so that the last rank does too.
    turn = np.empty(len(numbers), dtype=np.int64)
    turn[np.argsort(last_left, kind="stable")] = np.arange(len(numbers))
    return {place: _InTurn(rows, turn[at[place]]) for place, rows in stops.items()}


def _met_in(group: dict[int, _InTurn], waits: Wait, arrived_ns: Ints, rows: Ints) -> Iterator[_Met]:
    """Yields the last meetings, at calls of one set of ranks, before the waits of ``rows``."""
    turn = np.minimum(
        _look_up(group, waits.place[rows], _InTurn.left_by, waits.stood_ns[rows]),
        _look_up(group, waits.late[rows], _InTurn.left_by, arrived_ns[rows]),
    )
    missing = np.arange(len(rows))
    while len(missing := missing[turn[missing] >= 0]):
        both = [side[rows[missing]] for side in (waits.place, waits.late)]
        last_stood = (_look_up(group, side, _InTurn.stood_by, turn[missing]) for side in both)
        turn[missing] = np.maximum(*last_stood)
        waited = (_look_up(group, side, _InTurn.stood_at, turn[missing]) >= 0 for side in both)
        missing = missing[~np.logical_and(*waited)]
        turn[missing] -= 1
    rows, turn = rows[turn >= 0], turn[turn >= 0]
    sides = (waits.place[rows], waits.late[rows])
    stood = [_look_up(group, side, _InTurn.stood_at, turn) > 0 for side in sides]
    together = np.logical_and(*stood)
    met, left_ns = [], np.zeros_like(turn)
    for side, stands in zip(sides, stood, strict=True):
        times = np.zeros((3, len(turn)), dtype=np.int64)
        for place, mine in _by_value(side):
            times[:, mine] = group[place].times(turn[mine])
        arrived, began, left_ns = times
        begin = np.where(together, left_ns, arrived)
        stands &= ~together
        met.append((begin, np.where(stands, began, begin), np.where(stands, left_ns, begin)))
    yield rows, left_ns, (met[0], met[1])


def _look_up(
    group: dict[int, _InTurn],
    ranks: Ints,
    look_up: Callable[[_InTurn, Ints], Ints],
    values: Ints,
) -> Ints:
    result = np.zeros_like(values)
    for place, rows in _by_value(ranks):
        result[rows] = look_up(group[place], values[rows])
    return result


def _by_value(values: npt.NDArray[np.int64] | npt.NDArray[np.uint64]) -> Iterator[tuple[int, Ints]]:
    """Yields each value and the rows that have it."""
    if len(values) == 0:
        return
    order = np.argsort(values, kind="stable")
    for rows in np.split(order, 1 + np.flatnonzero(np.diff(values[order]) != 0)):
        yield int(values[rows[0]]), rows


def _calls(trace: Trace, table: Collectives, arrivals: Arrivals, exposed: Exposures) -> _Calls:
    buckets = arrivals.buckets
    number = np.concatenate((arrivals.collective, buckets.number))
    rows = np.flatnonzero(number >= 0)
    rows = rows[np.argsort(number[rows], kind="stable")]
    number = number[rows]
    arrived_ns = np.concatenate((table.issue_ns, buckets.ready_ns))[rows]
    op = np.concatenate((table.op, np.full(len(buckets), -1)))[rows]
    some_wait = among(op, *SOME_WAIT)
    stops = _stops(trace, table, arrivals, exposed)
    at = np.searchsorted(number, stops.number)
    left_ns = np.zeros(len(rows), dtype=np.int64)
    left_ns[at] = stops.left_ns
    stops = replace(stops, arrived_ns=arrived_ns[at]).of(~some_wait[at])
    return _Calls(number, arrived_ns, left_ns, some_wait, among(op, *POINT_TO_POINT), stops)


def _stops(trace: Trace, table: Collectives, arrivals: Arrivals, exposed: Exposures) -> _Stops:
    """Returns the first wait of the training thread for each call; ``arrived_ns`` is 0."""
    row = np.where(exposed.graph_task < 0, exposed.collective, -1)
    waits = np.flatnonzero(row >= 0)
    row = row[waits]
    # A wait that did not block returns at different times on different ranks.
    call_ns = np.where(table.end_is_exact[row], table.end_ns[row], 0)
    of_passes = _passes(trace, table, arrivals)
    number, begin_ns, end_ns, call_ns = (
        np.concatenate(parts)
        for parts in zip(
            (arrivals.collective[row], exposed.begin_ns[waits], exposed.end_ns[waits], call_ns),
            of_passes,
            strict=True,
        )
    )
    order = np.lexsort((begin_ns, number))
    order = order[number[order] >= 0]
    order = order[np.flatnonzero(np.diff(number[order], prepend=-1))]
    number, begin_ns, end_ns, call_ns = (x[order] for x in (number, begin_ns, end_ns, call_ns))
    left_ns = np.minimum(end_ns, np.where(call_ns > 0, call_ns, end_ns))
    stood = (call_ns > 0) & (left_ns - begin_ns >= BLOCKED_NS)
    return _Stops(number, np.zeros_like(number), begin_ns, np.where(stood, left_ns, end_ns), stood)


def _passes(trace: Trace, table: Collectives, arrivals: Arrivals) -> tuple[Ints, Ints, Ints, Ints]:
    """Returns the number, begin and end of each DDP finalisation, and the end of its last call.

    The number is the largest one among the calls of the backward pass, which is the same on all
    ranks; -1 if the pass has none.
    """
    span, buckets = columns.finalizations(trace).span, arrivals.buckets
    mine = np.flatnonzero(span.thread == training_thread(trace))
    mine = mine[np.argsort(span.key[mine], kind="stable")]
    call_ns = np.where(table.end_is_exact, table.end_ns, 0)
    task, number, call_ns = (
        np.concatenate(parts)
        for parts in (
            (np.where(among(table.op, *SOME_WAIT), -1, table.graph_task), buckets.graph_task),
            (arrivals.collective, buckets.number),
            (call_ns, buckets.end_ns),
        )
    )
    row = np.searchsorted(span.key[mine], task)
    rows = np.flatnonzero((row < len(mine)) & (number >= 0))
    rows = rows[span.key[mine][row[rows]] == task[rows]]
    last = np.full(len(mine), -1, dtype=np.int64)
    last_call_ns = np.zeros(len(mine), dtype=np.int64)
    np.maximum.at(last, row[rows], number[rows])
    np.maximum.at(last_call_ns, row[rows], call_ns[rows])
    return last, span.begin_ns[mine], span.end_ns[mine], last_call_ns
