"""Handles columns that hold the rows of several ranks, one rank after the other.

An array ``first`` holds the index of each rank's first row, and at its end the number of all rows.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from commprof.trace.lookup import joined_column, rows_of

Ints = npt.NDArray[np.int64]
#: A column of small numbers, with 4 or 8 bytes per row.
Narrow = npt.NDArray[np.int32] | Ints

_MOST_NS = 2**62
#: Largest number of rows in a block of ranks. At this size, the columns of a block fit into a
#: processor's cache.
MOST_ROWS = 100_000


def firsts(lengths: Sequence[int] | Ints) -> Ints:
    """Returns the array ``first`` (see above) for ranks with these numbers of rows."""
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)


def in_blocks(lengths: Sequence[int]) -> list[slice]:
    """Divides ranks into blocks of neighbours, given the number of rows of each rank."""
    first, bounds = firsts(lengths), [0]
    while bounds[-1] < len(lengths):
        until = int(np.searchsorted(first, first[bounds[-1]] + MOST_ROWS, side="right")) - 1
        bounds.append(max(until, bounds[-1] + 1))
    return list(itertools.starmap(slice, itertools.pairwise(bounds)))


@dataclass(slots=True, eq=False)
class RankRows:
    """The rows of one rank in a table that holds several ranks."""

    whole: Any
    begin: int
    end: int
    cut: Callable[[Any, slice], Any] = rows_of
    _made: Any = None

    @classmethod
    def of(cls, table: Any) -> RankRows:
        """Makes the object for a table that holds one rank only."""
        return cls(table, 0, len(table), _made=table)

    @property
    def table(self) -> Any:
        """A table with the rows of this rank only."""
        if self._made is None:
            self._made = self.cut(self.whole, slice(self.begin, self.end))
        return self._made


class RankTables(Sequence[Any]):
    """The tables of several ranks. Each table is made when it is first used."""

    def __init__(self, rows: Sequence[RankRows]) -> None:
        """``rows``: the rows of each rank."""
        self._rows = rows

    def __len__(self) -> int:
        """Number of ranks."""
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> RankTables: ...
    def __getitem__(self, index: Any) -> Any:
        """Returns the table of one rank, or the tables of a slice of the ranks."""
        if isinstance(index, slice):
            return RankTables(self._rows[index])
        return self._rows[index].table

    def __iter__(self) -> Iterator[Any]:
        """Yields the table of each rank."""
        return (rows.table for rows in self._rows)

    @cached_property
    def lengths(self) -> list[int]:
        """Number of rows of each rank."""
        return [rows.end - rows.begin for rows in self._rows]

    @cached_property
    def _pieces(self) -> list[tuple[Any, slice]]:
        """Tables, each with a slice of its rows. Joined, these slices are the rows of all ranks."""
        pieces: list[tuple[Any, slice]] = []
        whole, begin, end = None, 0, 0
        for rows in self._rows:
            if rows.whole is whole and rows.begin == end:
                end = rows.end
                continue
            if whole is not None:
                pieces.append((whole, slice(begin, end)))
            whole, begin, end = rows.whole, rows.begin, rows.end
        return [*pieces, (whole, slice(begin, end))]

    def wholes(self) -> list[Any]:
        """Returns for each rank the table that holds its rows."""
        return [rows.whole for rows in self._rows]

    def column(self, name: str) -> npt.NDArray[Any]:
        """Returns a column with the rows of all ranks."""
        read = operator.attrgetter(name)
        return joined_column(read(whole)[rows] for whole, rows in self._pieces)


def joined(tables: Sequence[Any], name: str) -> npt.NDArray[Any]:
    """Returns a column with the rows of all ranks' tables; ``name`` may contain dots."""
    if isinstance(tables, RankTables) and len(tables):
        return tables.column(name)
    return joined_column(map(operator.attrgetter(name), tables))


def of_tables(tables: Sequence[Any], name: str) -> list[Any]:
    """Returns an attribute of each rank's table; the attribute must not be a column."""
    wholes = tables.wholes() if isinstance(tables, RankTables) else tables
    return list(map(operator.attrgetter(name), wholes))


def lengths_of(tables: Sequence[Any]) -> list[int]:
    """Returns the number of rows of each rank."""
    return tables.lengths if isinstance(tables, RankTables) else list(map(len, tables))


def firsts_of(tables: Sequence[Any]) -> Ints:
    """Returns the array ``first`` (see above) for the tables of ranks."""
    return firsts(lengths_of(tables))


def accumulated(ufunc: np.ufunc, values: npt.NDArray[Any], first: Ints) -> npt.NDArray[Any]:
    """Applies ``ufunc.accumulate`` to the rows of each rank."""
    count = np.diff(first)
    if not len(values):
        return values
    if (count == count[0]).all():
        whole: npt.NDArray[Any] = ufunc.accumulate(values.reshape(len(count), -1), axis=1)
        return whole.reshape(-1)
    inside = np.arange(int(count.max())) < count[:, np.newaxis]
    padded = np.zeros(inside.shape, dtype=values.dtype)
    padded[inside] = values
    result: npt.NDArray[Any] = ufunc.accumulate(padded, axis=1)[inside]
    return result


class RankTimes:
    """Orders the times of all ranks: first all times of rank 0, then all of rank 1, and so on."""

    def __init__(self, begin_ns: Ints, until_ns: Ints) -> None:
        """``begin_ns``, ``until_ns``: for each rank, the first and last time whose order is kept.

        Times of a rank before ``begin_ns`` count as equal, and so do times after ``until_ns``.
        """
        self._begin_ns = begin_ns
        # The limit keeps the sum of all lengths below 2**63. In damaged traces, times can be years
        # apart.
        self._length_ns = np.minimum(until_ns - begin_ns, _MOST_NS // max(1, len(begin_ns)))
        self._base = firsts(self._length_ns + 4)[:-1]

    @classmethod
    def of(cls, ranks: int, *columns: tuple[Ints, Ints]) -> RankTimes:
        """Makes the object for all times in ``columns``, which are pairs of ranks and times."""
        begin_ns = np.full(ranks, _MOST_NS)
        until_ns = np.zeros(ranks, dtype=np.int64)
        for rank, time_ns in columns:
            np.minimum.at(begin_ns, rank, time_ns)
            np.maximum.at(until_ns, rank, time_ns)
        return cls(begin_ns, np.maximum(begin_ns, until_ns))

    def since(self, rank: Narrow, time_ns: Ints) -> Ints:
        """Returns the ns since the rank's ``begin_ns``, plus 1; 0 for times before ``begin_ns``."""
        since = time_ns - self._begin_ns[rank]  # long, so it is changed in place
        np.maximum(since, -1, out=since)
        np.minimum(since, (self._length_ns + 1)[rank], out=since)
        since += 1
        return since

    def key(self, rank: Narrow, time_ns: Ints) -> Ints:
        """Returns a number for each time; the numbers are ordered by rank, then by time."""
        key = self.since(rank, time_ns)
        key += self._base[rank]
        return key


def ranks_of(first: Ints) -> Ints:
    """Returns the index of each row's rank."""
    return np.repeat(np.arange(len(first) - 1), np.diff(first))


def rows_containing(
    begin_ns: Ints, end_ns: Ints, first: Ints, time_ns: Ints, first_time: Ints
) -> Ints:
    """Does what ``lookup.row_containing`` does, separately for each rank.

    Args:
        begin_ns: begins of the intervals of all ranks, in ascending order for each rank.
        end_ns: ends of the intervals.
        first: the first interval of each rank, then the number of all intervals.
        time_ns: times of all ranks.
        first_time: the first time of each rank, then the number of all times.
    """
    rank, rank_of_time = ranks_of(first), ranks_of(first_time)
    times = RankTimes.of(len(first) - 1, (rank, begin_ns), (rank_of_time, time_ns))
    keys = times.key(rank, begin_ns), times.key(rank_of_time, time_ns)
    row = np.searchsorted(*keys, side="right") - 1
    inside = row >= first[rank_of_time]
    inside[inside] = time_ns[inside] < end_ns[row[inside]]
    return np.where(inside, row, -1).astype(np.int64)
