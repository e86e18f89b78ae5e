"""Joins the records of several ranks, rank by rank."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from commprof.trace.packed import JoinedKind, PackedRecords, converted
from commprof.trace.ranks import firsts
from commprof.trace.schema import MOMENTS, Kind, members_with

Ints = npt.NDArray[np.int64]

#: Kinds that may be read from joined records.
KINDS = (
    *(Kind.STEP, Kind.ISSUE, Kind.END, Kind.WAIT, Kind.PHASE, Kind.PAUSE, Kind.RUN_DELAY),
    *(Kind.HOST_COUNTS, Kind.FINALIZE_BEGIN, Kind.FINALIZE_END),
)


def _of_joined(*contents: str) -> list[tuple[int, str]]:
    return sorted(place for place in members_with(*contents) if place[0] in KINDS)


_OPERATIONS = _of_joined("operation")
#: Kinds and members that hold the number of a backward pass plus 1; 0 means no pass.
_PASSES_PLUS_ONE = members_with("pass_plus_one")
_PASSES = _of_joined("pass", "pass_plus_one")
#: Stands for a shift that would be too large; other shifts are smaller than this.
LARGEST = 2**62


@dataclass(frozen=True)
class JoinedRecords(PackedRecords):
    """Records of several ranks, rank by rank, with shifted times and ids."""

    of_ranks: tuple[PackedRecords, ...] = ()
    #: ``[rank]``: time in ns that is added to the rank's times.
    shift_ns: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    #: Where the records of each kind are stored, for the kinds that were read before.
    _joined: dict[int, JoinedKind] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def pass_shift(self) -> Ints:
        """``[rank]``: number added to the ids of backward passes, so that the ids differ."""
        return self._apart(_PASSES)

    @cached_property
    def operation_shift(self) -> Ints:
        """``[rank]``: number added to the ids of operations, so that the ids differ."""
        return self._apart(_OPERATIONS)

    def _apart(self, fields: Sequence[tuple[int, str]]) -> Ints:
        columns = [self.recorded(kind, field) for kind, field in fields]
        most = 1 + max(int(column.max(initial=0)) for column in columns)
        last = len(self.of_ranks) - 1
        return np.arange(last + 1) * most if last * most < LARGEST else np.full(last + 1, LARGEST)

    def part(self, ranks: slice, shift_ns: Ints) -> JoinedRecords:
        """Returns the records of neighbouring ranks."""
        stored = {kind: joined.part(ranks) for kind, joined in self._joined.items()}
        return JoinedRecords((), None, self.of_ranks[ranks], shift_ns, stored)

    def _of_kind(self, kind: int) -> JoinedKind:
        if kind not in self._joined:
            self._joined[kind] = JoinedKind(self.of_ranks, kind)
        return self._joined[kind]

    def counts(self, kind: int) -> Ints:
        """Returns the number of records of a kind, for each rank."""
        return self._of_kind(kind).counts

    def __len__(self) -> int:
        """Number of records."""
        return sum(map(len, self.of_ranks))

    @cached_property
    def kinds(self) -> npt.NDArray[np.uint8]:
        """Kind of each record, in the order of the records."""
        return np.concatenate([records.kinds for records in self.of_ranks])

    def count(self, kind: int) -> int:
        """Returns the number of records of a kind."""
        return int(self.counts(kind).sum())

    def column(self, kind: int, field: str) -> npt.NDArray[Any]:
        """Returns a field of the records of one kind."""
        column = self.recorded(kind, field)
        if field == "timestamp_ns" and kind != Kind.CLOCK:
            return self._moved(kind, column, self.shift_ns)
        place = (kind, field)
        if place in MOMENTS:
            return np.where(column > 0, self._moved(kind, column, self.shift_ns), column)
        if place in _OPERATIONS:
            return self._moved(kind, column, self.operation_shift)
        if place in _PASSES:
            moved = self._moved(kind, column, self.pass_shift)
            return np.where(column > 0, moved, column) if place in _PASSES_PLUS_ONE else moved
        return column

    def recorded(self, kind: int, field: str) -> npt.NDArray[Any]:
        """Returns a field of all ranks' records of one kind, without shifts.

        Times are converted by each rank's ``to_common``.
        """
        values = self._of_kind(kind).column(field)
        if field != "timestamp_ns" and (kind, field) not in MOMENTS:
            return values
        first = firsts(self.counts(kind))
        for to_common, begin, end in self._clocks:
            rows = slice(first[begin], first[end])
            if to_common is not None and first[end] > first[begin]:
                values[rows] = converted(to_common, kind, field, values[rows])
        return values

    @cached_property
    def _clocks(self) -> list[tuple[Callable[[Ints], Ints] | None, int, int]]:
        """``to_common`` of some neighbouring ranks, the first rank, and the rank after the last."""
        clocks, done = [], 0
        for to_common, some in itertools.groupby(self.of_ranks, lambda rank: rank.to_common):
            begin, done = done, done + len(list(some))
            clocks.append((to_common, begin, done))
        return clocks

    def _moved(self, kind: int, column: npt.NDArray[Any], by: Ints) -> npt.NDArray[Any]:
        return column + np.repeat(by, self.counts(kind)).astype(column.dtype)

    @property
    def _present(self) -> set[int]:
        return {kind for records in self.of_ranks for kind in records._present}
