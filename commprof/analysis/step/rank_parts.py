"""Holds the parts of the steps of all ranks in tables ``[rank, step]``.

A sum over all ranks needs a few numpy calls on one table. With a table per rank, thousands of ranks
would need thousands of calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from commprof.analysis.step.breakdown import Breakdown, Caused, Floats
from commprof.analysis.step.exposure import CAUSES
from commprof.trace.columns import Ints
from commprof.trace.lookup import distinct_rows, is_in, kept_once, map_columns, one_value
from commprof.trace.ranks import Narrow, firsts


@dataclass(frozen=True)
class PairWaits:
    """Waiting of ranks for other ranks; pairs of ranks without waiting are left out.

    A table of all pairs would be large: for 4,096 ranks, it takes 134 MB.
    """

    #: Global ranks that were recorded.
    ranks: Ints
    world_size: int
    #: Per pair: index of the waiting rank among the recorded ranks.
    waiting: Narrow
    #: Per pair: global rank that is the root cause.
    rank: Narrow
    wait_ns: Floats

    def __getitem__(self, cells: tuple[Any, int]) -> Floats:
        """Returns the waiting of some ranks for one rank, in ns.

        ``cells``: a mask or slice of the global ranks that wait, and the global rank that they wait
        for.
        """
        rows, rank = cells
        chosen = self.rank == rank
        column = np.zeros(self.world_size)
        column[self.ranks[self.waiting[chosen]]] = self.wait_ns[chosen]
        return column[rows]

    def table_ns(self) -> Floats:
        """Returns the waiting in ns: ``[recorded rank that waits, global rank waited for]``."""
        table = np.zeros((len(self.ranks), self.world_size))
        table[self.waiting, self.rank] = self.wait_ns
        return table


class RankParts(Sequence[Breakdown]):
    """Parts of the steps of all ranks: a sequence with one :class:`Breakdown` per rank.

    All ranks have the same steps.
    """

    def __init__(self, blocks: Sequence[Breakdown]) -> None:
        """Takes blocks of neighbouring ranks, whose columns are ``[rank, step, ...]``.

        ``Caused.step`` of a block counts over all its ranks: the second rank's steps follow the
        first rank's last step.
        """
        self._blocks = list(blocks)
        self._first = firsts([len(block.wall_ns) for block in blocks])
        self._sums: dict[str, list[float]] = {}

    @classmethod
    def of(cls, parts: Sequence[Breakdown]) -> RankParts:
        """Makes the tables of ranks that have the same steps."""
        if isinstance(parts, RankParts):
            return parts
        return cls([_table(part, 1, np.ones(len(part.step), dtype=np.bool_)) for part in parts])

    def __len__(self) -> int:
        """Number of ranks."""
        return int(self._first[-1])

    @overload
    def __getitem__(self, index: int) -> Breakdown: ...
    @overload
    def __getitem__(self, index: slice) -> list[Breakdown]: ...
    def __getitem__(self, index: Any) -> Any:
        """Returns the parts of one rank, or a list for a slice of the ranks."""
        if isinstance(index, slice):
            return [self[rank] for rank in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        number = int(np.searchsorted(self._first, index, side="right")) - 1
        block, row = self._blocks[number], index - int(self._first[number])
        steps = block.wall_ns.shape[1]
        return map_columns(
            lambda column: (
                column.between(row * steps, (row + 1) * steps)
                if isinstance(column, Caused)
                else column[row]
            ),
            block,
        )

    def __iter__(self) -> Iterator[Breakdown]:
        """Yields the parts of each rank."""
        return (self[index] for index in range(len(self)))

    @cached_property
    def step(self) -> Ints:
        """Number of each step."""
        numbers: Ints = self._blocks[0].step[0]
        return numbers

    def table(self, name: str) -> Floats:
        """Returns :meth:`Breakdown.part_ns` of all ranks, as ``[rank, step]``."""
        return self.column(lambda block: block.part_ns(name))

    def column(self, of_block: Callable[[Breakdown], npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Joins the columns that ``of_block`` returns for the blocks: ``[rank, step, ...]``."""
        columns = [of_block(block) for block in self._blocks]
        if all(not any(column.strides) for column in columns) and all(map(np.size, columns)):
            values = {column.flat[0].item() for column in columns}
            if len(values) == 1:  # for example counts that are 0 on all ranks
                shape = (len(self), *columns[0].shape[1:])
                return np.broadcast_to(columns[0].reshape(-1)[:1].reshape(()), shape)
        # The order in memory must always be the same, because it decides how sums are rounded.
        return np.ascontiguousarray(np.concatenate(columns))

    def sums(self, name: str) -> list[float]:
        """Returns for each rank the sum of a part over its steps."""
        if name not in self._sums:
            self._sums[name] = self.table(name).sum(axis=1).tolist()
        return self._sums[name]

    @cached_property
    def caused(self) -> Caused:
        """Waiting of all ranks.

        ``Caused.step`` counts over all ranks: the second rank's steps follow the first rank's last
        step.
        """
        return Caused.joined([block.caused for block in self._blocks])

    def caused_in_all(self, chosen: npt.NDArray[np.bool_]) -> Floats:
        """Returns ``Breakdown.caused_ns`` of the chosen steps, summed over the waiting ranks."""
        caused, shape = self.caused, (int(chosen.sum()), self.caused.world_size, len(CAUSES))
        row = np.where(chosen, np.cumsum(chosen) - 1, -1)[caused.step % max(1, len(chosen))]
        counted = row >= 0
        cell = np.ravel_multi_index(
            (row[counted], caused.rank[counted], caused.cause[counted]), shape
        )
        size = int(np.prod(shape))
        total = np.bincount(cell, weights=caused.wait_ns[counted], minlength=size)
        return total.reshape(shape).astype(np.float64, copy=False)

    def pair_waits(
        self,
        ranks: Sequence[int],
        chosen: npt.NDArray[np.bool_] | None = None,
        without: str | None = None,
    ) -> PairWaits:
        """Returns the waiting of each rank for each other rank, summed over the chosen steps.

        Args:
            ranks: global rank of each rank in these tables, in order.
            chosen: the steps; None for all.
            without: a cause of waiting that is left out; None for all causes.
        """
        caused, steps = self.caused, max(1, len(self.step))
        counted = np.ones(len(caused.step), dtype=np.bool_)
        if chosen is not None:
            counted &= chosen[caused.step % steps]
        if without is not None:
            counted &= caused.cause != CAUSES.index(without)
        waiting, rank = caused.step[counted] // steps, caused.rank[counted]
        pair, first = distinct_rows(waiting, rank)
        wait_ns = np.bincount(pair, weights=caused.wait_ns[counted]).astype(np.float64)
        pairs = waiting[first], rank[first], wait_ns
        return PairWaits(np.array(ranks, dtype=np.int64), caused.world_size, *pairs)

    def since(self, begin: int) -> RankParts:
        """Returns the steps from row ``begin`` on, without a copy of their times."""
        steps = len(self.step)
        if begin == 0:
            return self
        later = np.arange(steps) >= begin

        def cut(column: Any) -> Any:
            if isinstance(column, Caused):
                return column[np.flatnonzero(np.tile(later, column.steps // steps))]
            return column[:, begin:]

        return RankParts([map_columns(cut, block) for block in self._blocks])

    def in_one_block(self) -> RankParts:
        """Copies the parts to one block, so that the original tables can be freed."""
        return RankParts([map_columns(_of_all_ranks, *self._blocks)])

    @classmethod
    def joined(cls, windows: list[RankParts]) -> RankParts:
        """Joins windows of consecutive steps; each window must consist of one block.

        Empties ``windows`` to save memory.
        """
        if len(windows) == 1:
            return windows.pop()
        length = [len(window.step) for window in windows]
        blocks = [window._blocks[0] for window in windows]
        windows.clear()
        columns: list[list[Any]] = []
        for block in blocks:
            of_window: list[Any] = []
            map_columns(of_window.append, block)
            columns.append(of_window)
        names = blocks[0]
        del blocks
        later = iter(range(len(columns[0])))

        def join(_: Any) -> Any:
            number = next(later)
            parts = [of_window[number] for of_window in columns]
            for of_window in columns:
                of_window[number] = None
            return _of_windows(parts, length)

        return cls([map_columns(join, names)])

    def rows(self, numbers: Ints) -> RankParts:
        """Returns the steps with these numbers, which are in ascending order."""
        chosen = is_in(self.step, numbers)
        if chosen.all():
            return self

        def cut(column: Any) -> Any:
            if isinstance(column, Caused):
                return column[np.flatnonzero(np.tile(chosen, column.steps // len(chosen)))]
            return column.compress(chosen, axis=1)

        return RankParts([map_columns(cut, block) for block in self._blocks])


@dataclass(frozen=True)
class BlockParts:
    """Parts of the steps of a block, one rank after the other; ranks may have different steps."""

    whole: Breakdown
    #: First row of each rank in ``whole``; the last entry is the number of rows.
    first: Ints

    def numbers(self) -> list[Ints]:
        """Returns the step numbers of each rank; a single entry if they are equal on all ranks."""
        step, count = self.whole.step, np.diff(self.first)
        if len(count) and (count == count[0]).all():
            of_ranks = step.reshape(len(count), -1)
            if (of_ranks == of_ranks[0]).all():
                return [of_ranks[0]]
        cuts = itertools.pairwise(self.first.tolist())
        return list(itertools.starmap(lambda begin, end: step[begin:end], cuts))


def common_steps(blocks: Sequence[BlockParts]) -> Ints:
    """Returns the numbers of the steps that all ranks completed, in ascending order."""
    numbers = [of_rank for block in blocks for of_rank in block.numbers()]
    common = np.unique(numbers[0])
    for of_rank in numbers[1:]:
        common = common[np.isin(common, of_rank)]
    return common


def parts_of(blocks: Sequence[BlockParts], numbers: Ints) -> RankParts:
    """Returns the parts of the steps with these numbers.

    ``numbers``: in ascending order; every rank must have each of these steps.
    """
    return RankParts(
        [
            _table(block.whole, len(block.first) - 1, is_in(block.whole.step, numbers))
            for block in blocks
        ]
    )


def _table(whole: Breakdown, ranks: int, chosen: npt.NDArray[np.bool_]) -> Breakdown:
    """Turns the chosen rows into columns ``[rank, step, ...]``; ``ranks``: number of ranks."""
    numbers = np.flatnonzero(chosen)
    count = len(numbers)
    rows: Any = numbers
    if count == len(chosen) or (count > 0 and numbers[-1] - numbers[0] == count - 1):
        rows = slice(int(numbers[0]), int(numbers[-1]) + 1) if count else slice(0, 0)
    steps = count // max(1, ranks)

    def cut(column: Any) -> Any:
        if isinstance(column, Caused):
            return column if count == len(chosen) else column[numbers]
        shape = ranks, steps, *column.shape[1:]
        if not any(column.strides) and column.size:
            return np.broadcast_to(column[0], shape)
        return column[rows].reshape(shape)

    table = map_columns(cut, whole)
    step = table.step
    is_same = len(step) > 0 and (step == step[0]).all()
    return replace(table, step=np.broadcast_to(step[0], step.shape)) if is_same else table


def _of_all_ranks(*columns: Any) -> Any:
    """Joins the columns of blocks; if all values are equal, stores only one of them."""
    if isinstance(columns[0], Caused):
        return Caused.joined(columns)
    if columns[0].dtype == np.int64 and not any(column.strides[0] for column in columns):
        count = sum(map(len, columns))  # step numbers are the same on all ranks
        return np.broadcast_to(columns[0][0].copy(), (count, *columns[0].shape[1:]))
    return _compact(np.concatenate(columns))


def _of_windows(parts: Sequence[Any], length: Sequence[int]) -> Any:
    """Joins columns along their steps; ``length``: number of steps of each part."""
    if isinstance(parts[0], Caused):
        return _caused_of_windows(parts, length)
    if not any(part.strides[0] for part in parts):
        row = np.concatenate([part[0] for part in parts])
        return np.broadcast_to(row, (len(parts[0]), *row.shape))
    return _compact(np.concatenate(parts, axis=1))


def _caused_of_windows(parts: Sequence[Caused], length: Sequence[int]) -> Caused:
    begins, steps = firsts(length)[:-1].tolist(), sum(length)
    ranks = parts[0].steps // max(1, length[0])
    row = np.concatenate(
        [
            part.step // max(1, count) * np.int64(steps) + part.step % max(1, count) + begin
            for part, count, begin in zip(parts, length, begins, strict=True)
        ]
    )
    order = np.argsort(row, kind="stable")
    rank, cause, wait_ns = (
        np.concatenate([getattr(part, name) for part in parts])[order]
        for name in ("rank", "cause", "wait_ns")
    )
    narrow = np.int32 if ranks * steps < 2**31 else np.int64
    return Caused(
        row[order].astype(narrow), rank, cause, wait_ns, ranks * steps, parts[0].world_size
    )


def _compact(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns a column; if all values are equal, such as NaN or 0, stores only one of them."""
    if not column.size:
        return column
    values = kept_once(column.reshape(-1))
    if any(values.strides):
        return column
    return np.broadcast_to(one_value(values)[0], column.shape)
