"""Finds where every wait began: the rank that caused the wait, and the activity of this rank.

If rank 2 waits for rank 1, and rank 1 came late because it had waited for rank 0, the cause is
rank 0. For each wait, an interval of the late rank is compared with an interval of the waiting
rank. Both intervals begin where the two ranks last met (see :mod:`meetings`), and end where the
ranks arrive at the collective of the wait. So both intervals contain the same part of the program.
Let "third" be the time for which a rank waits for third ranks in its interval, and "own" the rest
of the interval: phases, pauses, time without a core, and transfers. The late rank exceeds the
waiting rank by

    t = max(0, third_late - third_waiting) and o = max(0, own_late - own_waiting).

The part t / (t + o) of the wait began on third ranks. This part is distributed over the late rank's
waits in its interval, and these waits are traced back in turn. The remaining part is distributed
over the late rank's other activities that took longer than on the waiting rank, in proportion to
the extra time. So the causes of a wait add up to the wait exactly. If the two ranks have not met,
or if the extra times are less than a hundredth of the wait, the cause of the remaining part is
unknown.

The method follows the delay costs of Boehme et al., "Identifying the Root Causes of Wait States in
Large-Scale Parallel Applications", ACM TOPC 3:2, but compares intervals instead of call paths.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.arrivals import Arrivals
from commprof.analysis.step.exposure import CAUSES, TRANSFER, UNKNOWN, exposures_of
from commprof.analysis.step.joined import RankBlock, alone, joined_tables
from commprof.analysis.step.meetings import SharedCalls, Stretch, Wait
from commprof.analysis.step.spent import WAITING, RankTime
from commprof.analysis.step.waiting import Waiting, split
from commprof.trace.columns import Collectives, Ints
from commprof.trace.lookup import rows_of
from commprof.trace.ranks import Narrow, RankRows, RankTables
from commprof.trace.reader import Trace

Floats = npt.NDArray[np.float64]
#: Activities explain a wait only if their extra time exceeds this fraction of the wait.
_LEAST_SHARE = 0.01
_UNKNOWN, _TRANSFER = CAUSES.index(UNKNOWN), CAUSES.index(TRANSFER)


@dataclass(frozen=True)
class Origins:
    """Waits of a block of ranks, split by the rank and the activity that caused the wait."""

    #: Row of ``Exposures``; the parts of a row add up to its wait.
    exposure: Narrow
    #: Global rank where the wait began.
    rank: Narrow
    #: Activity of this rank at the time, as an index into ``CAUSES``.
    cause: npt.NDArray[np.int8] | Ints
    wait_ns: Floats
    #: Split of all exposures into waiting and transfer.
    waiting: Waiting


@dataclass(frozen=True)
class _Waits:
    """Waits of all ranks, sorted by rank, then by the end of the wait."""

    #: Index of the waiting rank among the traces.
    place: Narrow
    #: Row among the exposures of all blocks.
    row: Narrow
    #: Index of the rank that was waited for.
    late: Narrow
    #: Index of each block's first wait; the last entry is the number of waits.
    first: Ints


@dataclass(frozen=True)
class _Cells:
    """Activities that took longer on a late rank than on the waiting rank, sorted by wait."""

    #: Row of ``_Waits``.
    wait: Narrow
    cause: npt.NDArray[np.int8]
    #: Fraction that the activity explains of the part of the wait that began on the late rank. The
    #: fractions of a wait add up to 1.
    share: Floats

    @classmethod
    def of(cls, own: Floats, first: int) -> _Cells:
        """Returns the cells of ``own[wait, cause]`` that are not 0; ``first``: wait of row 0."""
        wait, cause = np.nonzero(own)
        return cls((wait + first).astype(np.int32), cause.astype(np.int8), own[wait, cause])


@dataclass(frozen=True)
class _Through:
    """Waits that began, at least in part, on third ranks that the late rank waited for."""

    wait: Ints
    #: Interval of the late rank that explains the wait.
    explained_by: Stretch
    #: Fraction of the wait that began on third ranks.
    share: Floats


class _Times:
    """Times of all ranks by activity. A place is a rank's index among the traces."""

    def __init__(self, blocks: Sequence[RankBlock], waits: Sequence[Waiting]) -> None:
        self._blocks = blocks
        self.of_blocks = [
            RankTime(block.trace, exposures_of(block.trace), waiting)
            for block, waiting in zip(blocks, waits, strict=True)
        ]
        self._block_of = np.repeat(np.arange(len(blocks)), list(map(len, blocks)))
        self.shift_ns = np.concatenate([block.shift_ns for block in blocks])
        count = [len(time.begin_ns) for time in self.of_blocks]
        self.first_row = np.concatenate(([0], np.cumsum(count)))

    def waits_in(self, place: int, begin_ns: int, end_ns: int) -> tuple[Ints, Floats]:
        """Returns ``RankTime.waits_in`` of one rank, with rows counted over all blocks."""
        block = int(self._block_of[place])
        shift_ns = int(self.shift_ns[place])
        rows, part = self.of_blocks[block].waits_in(begin_ns + shift_ns, end_ns + shift_ns)
        return self.first_row[block] + rows, part

    def add_spent(
        self,
        spent_ns: list[Floats | None],
        sign: int,
        place: Narrow,
        stretch: Stretch,
        chosen: Ints,
    ) -> None:
        """Adds the times of the ``chosen`` rows to the columns ``spent_ns``, one per activity.

        ``sign``: 1 to add, -1 to subtract. Columns that are None are made.
        """
        block_of = self._block_of[place[chosen]]
        for number in np.unique(block_of).tolist():
            rows = chosen[block_of == number]
            part = stretch.of(rows).moved(self.shift_ns[place[rows]])
            for activity, spent in _spent(self.of_blocks[number], part):
                column = spent_ns[activity]
                if column is None:
                    column = spent_ns[activity] = np.zeros(len(place))
                column[rows] += sign * spent

    def all_waits(self, places: Ints) -> tuple[_Waits, Wait]:
        """Returns the waits of all ranks twice: for this module, and for :mod:`meetings`.

        ``places``: index among the traces, by global rank.
        """
        parts = [
            self._waits_of(*of_block, places)
            for of_block in zip(self._blocks, self.of_blocks, self.first_row.tolist(), strict=False)
        ]
        place, row, late, number, stood_ns = (
            np.concatenate(columns) for columns in zip(*parts, strict=True)
        )
        first = np.cumsum([0, *(len(part[0]) for part in parts)])
        return _Waits(place, row, late, first), Wait(place, late, number, stood_ns)

    def _waits_of(
        self, block: RankBlock, time: RankTime, first_row: int, places: Ints
    ) -> tuple[Ints | Narrow, ...]:
        rows = np.flatnonzero((time.wait_ns > 0) & (time.waiting.culprit >= 0))
        end_ns = time.end_ns[rows]
        # A sort by end does not mix the ranks: in a block, the shifted times of a rank are later
        # than all times of the rank before it.
        if (end_ns[1:] < end_ns[:-1]).any():
            rows = rows[np.argsort(end_ns, kind="stable")]
        place = block.first + block.rank_at(time.begin_ns[rows])
        return (
            place.astype(np.int32),
            (first_row + rows).astype(np.int32),
            places[time.waiting.culprit[rows]].astype(np.int32),
            time.waiting.number[rows].astype(np.int32),
            time.stood_ns[rows] - self.shift_ns[place],
        )

    def ends_ns(self, waits: _Waits) -> Ints:
        return self._of_waits(waits, "end_ns") - self.shift_ns[waits.place]

    def wait_ns(self, waits: _Waits) -> Floats:
        return self._of_waits(waits, "wait_ns")

    def _of_waits(self, waits: _Waits, name: str) -> npt.NDArray[Any]:
        blocks = zip(self.of_blocks, self.first_row.tolist(), *_bounds(waits.first), strict=False)
        return np.concatenate(
            [
                getattr(time, name)[waits.row[begin:end] - first_row]
                for time, first_row, begin, end in blocks
            ]
        )


def _bounds(first: Ints) -> tuple[list[int], list[int]]:
    return first[:-1].tolist(), first[1:].tolist()


def origins(
    traces: Sequence[Trace],
    tables: Sequence[Collectives],
    arrivals: Sequence[Arrivals],
    blocks: Sequence[RankBlock] | None = None,
    waits: Sequence[Waiting] | None = None,
) -> list[Origins]:
    """Finds where the waits of all ranks began; returns the origins of each block's waits.

    Args:
        traces: traces of the ranks, on a common clock.
        tables: collectives of each rank.
        arrivals: last arrivals at these collectives.
        blocks: blocks of the ranks; None to handle each rank alone.
        waits: split of each block's exposures into waiting and transfer.
    """
    if blocks is None or waits is None:
        blocks = [alone(*rank) for rank in enumerate(traces)]
        of_ranks = map(exposures_of, traces)
        waits = [split(*rank) for rank in zip(of_ranks, tables, arrivals, strict=True)]
    ranks, times = [trace.rank for trace in traces], _Times(blocks, waits)
    places = np.zeros(max(ranks) + 1, dtype=np.int64)
    places[list(ranks)] = np.arange(len(ranks))
    found, compared = times.all_waits(places)
    shared = _shared(blocks, traces, tables, arrivals)
    cells, through = _explained(found, compared, times, shared)
    del shared, compared
    wait, late, cause, share = _parts(found, cells, through, times)
    del cells, through
    global_rank = np.array(ranks, dtype=np.int32)
    wait_ns = times.wait_ns(found)
    bounds = np.searchsorted(found.place[wait], [*(block.first for block in blocks), len(ranks)])
    parts = []
    for number, (begin, end) in enumerate(zip(*_bounds(bounds), strict=True)):
        of_block = slice(begin, end)
        at = wait[of_block]
        parts.append(
            Origins(
                found.row[at] - np.int32(times.first_row[number]),
                global_rank[late[of_block]],
                cause[of_block],
                wait_ns[at] * share[of_block],
                waits[number],
            )
        )
    return parts


def _shared(
    blocks: Sequence[RankBlock],
    traces: Sequence[Trace],
    tables: Sequence[Collectives],
    arrivals: Sequence[Arrivals],
) -> SharedCalls:
    rows = []
    for block in blocks:
        whole, first = block.exposures_of_ranks()
        rows += [RankRows(whole, *of_rank) for of_rank in itertools.pairwise(first.tolist())]
    return SharedCalls(traces, tables, arrivals, RankTables(rows))


def _explained(
    waits: _Waits, compared: Wait, times: _Times, shared: SharedCalls
) -> tuple[_Cells, _Through]:
    """Finds, for each wait, the activities that took longer on the late rank.

    Handles some blocks at a time, because a table of all ranks' waits would be large.
    """
    wait_ns = times.wait_ns(waits)
    none = np.zeros(0, dtype=np.int64)
    cells = [_Cells.of(np.zeros((0, WAITING + 1)), 0)]
    through = [_Through(none, Stretch(none, none, none, none), np.zeros(0))]
    parts = _parts_of_waits(waits.first)
    compared_parts = shared.compared_in_parts(compared, parts)
    for rows, (own_time, late_time) in zip(parts, compared_parts, strict=True):
        excess: list[Floats | None] = [None] * (WAITING + 1)
        met = np.flatnonzero(late_time.begin_ns > 0)
        times.add_spent(excess, -1, waits.place[rows], own_time, met)
        del own_time
        times.add_spent(excess, 1, waits.late[rows], late_time, met)
        for begin in range(0, rows.stop - rows.start, _ROWS):
            some = slice(begin, begin + _ROWS)
            own, share = _shares([x if x is None else x[some] for x in excess], wait_ns[rows][some])
            cells.append(_Cells.of(own, rows.start + begin))
            passed_on = begin + np.flatnonzero(share > 0)
            stretch, share = late_time.of(passed_on), share[passed_on - begin]
            through.append(_Through(passed_on + rows.start, stretch, share))
    return joined_tables(cells), joined_tables(through)


#: Number of waits in a table of activities.
_ROWS = 1 << 14
#: Least number of waits that are compared together, except for the last part.
_PART = 1 << 15


def _parts_of_waits(first: Ints) -> list[slice]:
    """Divides waits into parts of whole blocks; ``first``: as in ``_Waits``."""
    bounds = [0]
    for end in first[1:].tolist():
        if end - bounds[-1] >= _PART or end == first[-1] > bounds[-1]:
            bounds.append(end)
    return list(itertools.starmap(slice, itertools.pairwise(bounds)))


def _shares(excess: Sequence[Floats | None], wait_ns: Floats) -> tuple[Floats, Floats]:
    """Divides waits among the activities that took longer on the late rank.

    Args:
        excess: per activity, the late rank's time minus the waiting rank's time; None if it is 0
            in all rows. The last entry is waiting.
        wait_ns: the waits.

    Returns:
        Two results. First, ``[wait, cause]``: fractions of the part of the wait that began on the
        late rank. Second, per wait: the fraction of the wait that began on third ranks.
    """
    own = np.zeros((len(wait_ns), WAITING + 1))
    for activity, column in enumerate(excess):
        if column is not None:
            own[:, activity] = column
    passed = np.maximum(0.0, own[:, WAITING])
    rest = np.maximum(0.0, own[:, :WAITING].sum(axis=1))
    np.maximum(0.0, own, out=own)
    own[:, _UNKNOWN] = 0.0
    total = own.sum(axis=1)
    own /= np.where(total > 0, total, 1.0)[:, np.newaxis]
    # An activity that took a few ns longer does not explain a wait of milliseconds.
    unexplained = total <= _LEAST_SHARE * wait_ns
    own[unexplained] = 0.0
    own[unexplained, _UNKNOWN] = 1.0
    return own, passed / np.maximum(passed + rest, 1e-9)


def _spent(time: RankTime, stretch: Stretch) -> Iterator[tuple[int, Floats]]:
    """Yields each activity and its time in each stretch.

    Waiting and transfer at the meeting are left out.
    """
    stood = np.flatnonzero(stretch.stood_ns < stretch.left_ns)
    not_counted: dict[int, Floats] = {}
    if len(stood):
        not_counted = dict(time.spent_in(stretch.stood_ns[stood], stretch.left_ns[stood]))
    for activity, spent in time.spent_in(stretch.begin_ns, stretch.end_ns):
        if activity in (WAITING, _TRANSFER) and len(stood):
            spent[stood] -= not_counted[activity]
        yield activity, spent


def _parts(
    waits: _Waits, cells: _Cells, through: _Through, times: _Times
) -> tuple[Narrow, Narrow, npt.NDArray[np.int8], Floats]:
    """Returns the parts of all waits in four columns: wait, index of the rank, cause, fraction.

    The rows are sorted by waiting rank.
    """
    carried = _carried_back(waits, cells, through, times) if len(through.wait) else {}
    if not carried:
        return cells.wait, waits.late[cells.wait], cells.cause, cells.share
    others = np.ones(len(waits.row), dtype=np.bool_)
    others[list(carried)] = False
    kept = rows_of(cells, others[cells.wait])
    whole = [
        (wait, rank, why, share)
        for wait, parts in carried.items()
        for (rank, why), share in parts.items()
    ]
    wait, late, cause, share = (
        np.concatenate((column, np.array(added, dtype=column.dtype)))
        for column, added in zip(
            (kept.wait, waits.late[kept.wait], kept.cause, kept.share),
            zip(*whole, strict=True),
            strict=True,
        )
    )
    order = np.argsort(waits.place[wait], kind="stable")
    return wait[order], late[order], cause[order], share[order]


#: Fractions of a wait, by index of the rank and by cause. The fractions add up to 1.
_Fractions = dict[tuple[int, int], float]


def _carried_back(
    waits: _Waits, cells: _Cells, through: _Through, times: _Times
) -> dict[int, _Fractions]:
    """Returns the parts of each wait that began, at least in part, on third ranks.

    Waits that began only on the late rank are left out: ``cells`` has their parts.
    """
    by_end = np.argsort(times.ends_ns(waits), kind="stable")
    turn = np.empty(len(by_end), dtype=np.int64)
    turn[by_end] = np.arange(len(by_end))
    at = np.full(times.first_row[-1], -1, dtype=np.int64)
    at[waits.row] = np.arange(len(waits.row))
    through = rows_of(through, np.argsort(turn[through.wait]))
    stretch = through.explained_by
    windows = np.stack(
        (stretch.begin_ns, stretch.stood_ns, stretch.left_ns, stretch.end_ns), axis=1
    ).reshape(-1, 2, 2)
    first_cell = np.searchsorted(cells.wait, np.arange(len(waits.row) + 1))
    found: dict[int, _Fractions] = {}

    def parts_of(wait: int) -> _Fractions:
        if wait in found:
            return found[wait]
        late, own = int(waits.late[wait]), slice(*first_cell[wait : wait + 2].tolist())
        parts = zip(cells.cause[own].tolist(), cells.share[own].tolist(), strict=True)
        return {(late, cause): share for cause, share in parts}

    of_wait = zip(through.wait.tolist(), through.share.tolist(), windows.tolist(), strict=True)
    for i, share, both in of_wait:
        late = int(waits.late[i])
        earlier = [
            (number, part)
            for begin, end in both
            for row, part in zip(*times.waits_in(late, begin, end), strict=True)
            if (number := int(at[row])) >= 0 and turn[number] < turn[i]
        ]
        if not earlier:
            continue
        parts = {cell: (1 - share) * part for cell, part in parts_of(i).items()}
        total = sum(part for _, part in earlier)
        for number, part in earlier:
            for cell, fraction in parts_of(number).items():
                parts[cell] = parts.get(cell, 0.0) + share * part / total * fraction
        found[i] = parts
    return found
