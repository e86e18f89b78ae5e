"""Origins of every wait: the rank where it began, and the activity of that rank at the time.

If rank 2 waits for rank 1, and rank 1 came late because it had waited for rank 0, the cause is
rank 0. Consider the last point of the program at which the two ranks met (see :mod:`meetings`).
Each rank's interval lasts from this point until its arrival at the collective of the wait, so that
both intervals hold the same part of the program. In its interval a rank waits for third ranks, or
it works (in a phase), is paused, lacks a core or transfers. Let "third" be the time for which a
rank waits for third ranks in its interval, and "own" the rest of the interval. The late rank
exceeds the waiting rank by

    t = max(0, third_late - third_waiting) and o = max(0, own_late - own_waiting).

The part t / (t + o) of the wait began on third ranks that the late rank waited for. It is
distributed over the late rank's waits in its interval, and these are traced back in turn.
The remaining part is distributed over the late rank's other activities (phases, pauses, time
without a core, transfers) that took longer than on the waiting rank, in proportion to the extra
time. So the causes of every wait add up to the wait exactly. If the two ranks have not met before,
or if the extra times add up to less than a hundredth of the wait, because the late rank was behind
when they met, that part is attributed to the late rank with an unknown cause.

(Delay costs of Boehme et al., "Identifying the Root Causes of Wait States in Large-Scale Parallel
Applications", ACM TOPC 3:2, with stretches of time instead of call paths.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.arrivals import Arrivals
from commprof.analysis.step.exposure import CAUSES, TRANSFER, UNKNOWN, exposures_of
from commprof.analysis.step.joined import RankBlock, alone
from commprof.analysis.step.meetings import SharedCalls, Stretch, Wait
from commprof.analysis.step.spent import WAITING, RankTime
from commprof.analysis.step.waiting import Waiting, split
from commprof.trace.columns import Collectives, Ints
from commprof.trace.reader import Trace

Floats = npt.NDArray[np.float64]
#: Activities explain a wait if they took longer on the late rank by this fraction of the wait.
_LEAST_SHARE = 0.01
_UNKNOWN, _TRANSFER = CAUSES.index(UNKNOWN), CAUSES.index(TRANSFER)


@dataclass(frozen=True)
class Origins:
    """Parts of the waits of a block of ranks, by the rank and activity that caused them.

    All columns have the same length.
    """

    #: Row of ``Exposures``; the parts of a row add up to its wait.
    exposure: Ints
    #: Global rank where the wait began.
    rank: Ints
    #: Activity of this rank at the time, as an index into ``CAUSES``.
    cause: Ints
    wait_ns: Floats
    #: Split of all exposures into waiting and transfer.
    waiting: Waiting


@dataclass(frozen=True)
class _Waits:
    """Every wait of every rank, sorted by end; ``place`` is the rank's index among the traces."""

    place: Ints
    #: Row among the exposures of the rank's block.
    row: Ints
    #: Index of the rank for which it waited.
    late: Ints
    #: The late rank's time that explains the wait.
    explained_by: Stretch
    wait_ns: Floats
    #: Fraction of the wait that began on third ranks that the late rank waited for.
    through: Floats
    #: ``[wait, cause]``: fractions of the rest of the wait, which add up to 1.
    own: Floats


class _Times:
    """Activities of all ranks, block by block. A place is a rank's index among the traces."""

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

    def rows(self, place: Ints, row: Ints) -> Ints:
        """Converts rows of the blocks of ranks ``place`` to rows among all exposures."""
        return self.first_row[self._block_of[place]] + row

    def waits_in(self, place: int, begin_ns: int, end_ns: int) -> tuple[Ints, Floats]:
        """Does what ``RankTime.waits_in`` does, for one rank; returns rows among all blocks."""
        block = int(self._block_of[place])
        shift_ns = int(self.shift_ns[place])
        rows, part = self.of_blocks[block].waits_in(begin_ns + shift_ns, end_ns + shift_ns)
        return self.first_row[block] + rows, part

    def spent(self, place: Ints, stretch: Stretch) -> Iterator[tuple[Ints, Floats]]:
        """Yields, per block, rows of ``stretch`` and their times, see ``RankTime.spent``."""
        block_of = self._block_of[place]
        for number, time in enumerate(self.of_blocks):
            rows = np.flatnonzero(block_of == number)
            if len(rows):
                yield rows, _spent(time, stretch.of(rows).moved(self.shift_ns[place[rows]]))

    def all_waits(self, places: Ints) -> Iterator[tuple[Ints | Floats, ...]]:
        """Yields columns of the waits of each block.

        They are: place, row, late, number, end_ns, stood_ns and wait_ns. ``place``, ``row``,
        ``late`` and ``wait_ns`` are as in ``_Waits``. ``number`` is the index of the awaited
        collective or bucket, ``end_ns`` the end of the wait, and ``stood_ns`` the time at which the
        training thread began to wait.

        Args:
            places: index among the traces, by global rank.
        """
        for block, time in zip(self._blocks, self.of_blocks, strict=True):
            rows = np.flatnonzero((time.wait_ns > 0) & (time.waiting.culprit >= 0))
            place = block.first + block.rank_at(time.begin_ns[rows])
            shift_ns = self.shift_ns[place]
            yield (
                place,
                rows,
                places[time.waiting.culprit[rows]],
                time.waiting.number[rows],
                time.end_ns[rows] - shift_ns,
                time.stood_ns[rows] - shift_ns,
                time.wait_ns[rows],
            )


def origins(
    traces: Sequence[Trace],
    tables: Sequence[Collectives],
    arrivals: Sequence[Arrivals],
    blocks: Sequence[RankBlock] | None = None,
    waits: Sequence[Waiting] | None = None,
) -> list[Origins]:
    """Finds where the waits of all ranks began; returns those of each block.

    Args:
        traces: traces of the ranks, on a common clock.
        tables: collectives of each rank.
        arrivals: last arrivals at these collectives.
        blocks: the ranks, joined; None for each rank alone.
        waits: split of each block's exposures into waiting and transfer.
    """
    if blocks is None or waits is None:
        blocks = [alone(*rank) for rank in enumerate(traces)]
        of_ranks = map(exposures_of, traces)
        waits = [split(*rank) for rank in zip(of_ranks, tables, arrivals, strict=True)]
    ranks, times = [trace.rank for trace in traces], _Times(blocks, waits)
    found = _waits(
        ranks,
        times,
        lambda waits: _shared(blocks, traces, tables, arrivals).compared(waits),
    )
    wait, late, cause, share = _parts(found, times)
    order = np.argsort(found.place[wait], kind="stable")
    wait, late, cause, share = wait[order], late[order], cause[order], share[order]
    columns = (
        found.row[wait],
        np.array(ranks, dtype=np.int64)[late],
        cause,
        found.wait_ns[wait] * share,
    )
    first = np.searchsorted(found.place[wait], [block.first for block in blocks[1:]])
    return [
        Origins(*of_block)
        for of_block in zip(*(np.split(x, first) for x in columns), waits, strict=True)
    ]


def _shared(
    blocks: Sequence[RankBlock],
    traces: Sequence[Trace],
    tables: Sequence[Collectives],
    arrivals: Sequence[Arrivals],
) -> SharedCalls:
    exposed = [of_rank for block in blocks for of_rank in block.exposures_of_ranks()]
    return SharedCalls(traces, tables, arrivals, exposed)


def _waits(
    ranks: Sequence[int],
    times: _Times,
    compared: Callable[[Wait], tuple[Stretch, Stretch]],
) -> _Waits:
    """Returns all waits, each with the activities on which the late rank spent more time.

    ``compared``: does what ``SharedCalls.compared`` does, and frees the calls then.
    """
    places = np.zeros(max(ranks) + 1, dtype=np.int64)
    places[list(ranks)] = np.arange(len(ranks))
    place, row, late, number, end_ns, stood_ns, wait_ns = (
        np.concatenate(parts) for parts in zip(*times.all_waits(places), strict=True)
    )
    order = np.argsort(end_ns, kind="stable")
    del end_ns
    # The columns of all ranks' waits are large, so a copy is not held longer than it is needed.
    place, row, late = place[order], row[order], late[order]
    number, stood_ns, wait_ns = number[order], stood_ns[order], wait_ns[order]
    del order
    own_time, late_time = compared(Wait(place, late, number, stood_ns))
    del number, stood_ns
    excess = np.zeros((len(row), WAITING + 1))
    met = np.flatnonzero(late_time.begin_ns > 0)
    for rows, spent in times.spent(place[met], own_time.of(met)):
        excess[met[rows]] -= spent
    del own_time
    for rows, spent in times.spent(late[met], late_time.of(met)):
        excess[met[rows]] += spent
    passed = np.maximum(0.0, excess[:, WAITING])
    rest = np.maximum(0.0, excess[:, :WAITING].sum(axis=1))
    own = np.maximum(0.0, excess, out=excess)  # in place: the table of all ranks' waits is large
    own[:, _UNKNOWN] = 0.0
    total = own.sum(axis=1)
    own /= np.where(total > 0, total, 1.0)[:, np.newaxis]
    # A few ns more of one activity do not explain a wait of milliseconds.
    unexplained = total <= _LEAST_SHARE * wait_ns
    own[unexplained] = 0.0
    own[unexplained, _UNKNOWN] = 1.0
    through = passed / np.maximum(passed + rest, 1e-9)
    return _Waits(place, row, late, late_time, wait_ns, through, own)


def _spent(time: RankTime, stretch: Stretch) -> Floats:
    """Returns the rank's time by activity in each stretch, without its standing at the meeting."""
    spent = time.spent(stretch.begin_ns, stretch.end_ns)
    stood = np.flatnonzero(stretch.stood_ns < stretch.left_ns)
    if len(stood):
        not_counted = time.spent(stretch.stood_ns[stood], stretch.left_ns[stood])
        for activity in (WAITING, _TRANSFER):
            spent[stood, activity] -= not_counted[:, activity]
    return spent


def _parts(waits: _Waits, times: _Times) -> tuple[Ints, Ints, Ints, Floats]:
    """Returns all parts of all waits as four columns: wait, index of the rank, cause, fraction."""
    carried = _carried_back(waits, times)
    others = np.ones(len(waits.row), dtype=np.bool_)
    others[list(carried)] = False
    row, cause = np.nonzero(waits.own)
    kept = others[row]
    row, cause = row[kept], cause[kept]
    cells = [
        (wait, rank, why, share)
        for wait, parts in carried.items()
        for (rank, why), share in parts.items()
    ]
    whole = np.array([cell[:3] for cell in cells], dtype=np.int64).reshape(-1, 3)
    return (
        np.concatenate((row, whole[:, 0])),
        np.concatenate((waits.late[row], whole[:, 1])),
        np.concatenate((cause, whole[:, 2])),
        np.concatenate((waits.own[row, cause], [cell[3] for cell in cells])),
    )


#: Fractions of a wait by the rank's index and the cause; they add up to 1.
_Cells = dict[tuple[int, int], float]


def _carried_back(waits: _Waits, times: _Times) -> dict[int, _Cells]:
    """Returns, by wait, all parts of the waits that began, at least in part, on third ranks.

    Waits are handled in order of their ends. Most waits began on the late rank only and are left
    out: ``waits.own`` has their parts.
    """
    through = np.flatnonzero(waits.through > 0)
    if len(through) == 0:
        return {}
    at = np.full(times.first_row[-1], -1, dtype=np.int64)
    at[times.rows(waits.place, waits.row)] = np.arange(len(waits.row))
    stretch = waits.explained_by.of(through)
    windows = np.stack(
        (stretch.begin_ns, stretch.stood_ns, stretch.left_ns, stretch.end_ns), axis=1
    ).reshape(-1, 2, 2)
    found: dict[int, _Cells] = {}

    def parts_of(wait: int) -> _Cells:
        if wait in found:
            return found[wait]
        late, own = int(waits.late[wait]), waits.own[wait]
        return {(late, cause): float(own[cause]) for cause in np.flatnonzero(own).tolist()}

    for i, both in zip(through.tolist(), windows.tolist(), strict=True):
        late = int(waits.late[i])
        earlier = [
            (number, part)
            for begin, end in both
            for row, part in zip(*times.waits_in(late, begin, end), strict=True)
            if 0 <= (number := int(at[row])) < i
        ]
        if not earlier:
            continue
        share = float(waits.through[i])
        parts = {cell: (1 - share) * part for cell, part in parts_of(i).items()}
        total = sum(part for _, part in earlier)
        for number, part in earlier:
            for cell, fraction in parts_of(number).items():
                parts[cell] = parts.get(cell, 0.0) + share * part / total * fraction
        found[i] = parts
    return found
