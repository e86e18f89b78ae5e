"""Keeps the calls of a rank in columns.

The kind of a call holds the properties that many calls share, such as operation, group and size.
All ranks of a job have the same few kinds, so results that depend only on the kind are computed
once per job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

from commprof.recordings.profiler_calls import Call
from commprof.recordings.profiler_events import ProfilerEvents
from commprof.trace.lookup import distinct, numbered

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: Fields of ``Call`` that are columns, because they differ from call to call.
_COLUMNS: Final = ("seq", "launch_ns", "launch_thread", "begin_ns", "end_ns", "device", "replay")
#: A kind is kept as a ``Call`` with these values in the fields that differ from call to call.
_NEUTRAL: Final[dict[str, Any]] = {
    **{"seq": -1, "launch_ns": 0, "launch_thread": -1, "begin_ns": 0, "end_ns": 0, "device": 0},
    **{"replay": -1, "launched_in": (), "kernels": ()},
}
_OF_KIND: Final = tuple(field.name for field in fields(Call) if field.name not in _NEUTRAL)


class CallKinds:
    """Gives an id to each kind of call of a job."""

    def __init__(self) -> None:
        """Begins without any kind of call."""
        self.kinds: list[Call] = []
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._columns: dict[Any, npt.NDArray[Any]] = {}

    def number(self, call: Call) -> int:
        """Returns the id of a call's kind."""
        key = tuple([getattr(call, name) for name in _OF_KIND])
        number = self._numbers.setdefault(key, len(self.kinds))
        if number == len(self.kinds):
            self.kinds.append(replace(call, **_NEUTRAL))
        return number

    def column(self, value: Callable[[Call], Any], dtype: Any = np.int64) -> npt.NDArray[Any]:
        """Returns ``value`` of each kind. Results are cached by function object."""
        known = self._columns.get(value)
        if known is None or len(known) < len(self.kinds):
            known = np.empty(len(self.kinds), dtype)
            for number, kind in enumerate(self.kinds):
                known[number] = value(kind)
            self._columns[value] = known
        return known


class Launching(Sequence[tuple[int, ...]]):
    """Rows of c10d's ranges around the launch of each call; see ``Call.launched_in``."""

    def __init__(self, best: Ints, inside: Ints) -> None:
        """Keeps row numbers of ranges; -1 stands for no range.

        Args:
            best: the range that names each call's operation.
            inside: ranges around each call's launch, innermost first, ``[depth, call]``.
        """
        self._best, self._inside = best, inside

    @property
    def first(self) -> Ints:
        """Row of the first range of each call; -1 if the call has no range."""
        first = self._best
        for rows in self._inside:
            first = np.where(first >= 0, first, rows)
        return first

    def rows(self, chosen: Ints) -> Launching:
        """Returns the ranges of some calls."""
        return Launching(self._best[chosen], self._inside[:, chosen])

    @overload
    def __getitem__(self, at: int) -> tuple[int, ...]: ...

    @overload
    def __getitem__(self, at: slice) -> list[tuple[int, ...]]: ...

    def __getitem__(self, at: int | slice) -> tuple[int, ...] | list[tuple[int, ...]]:
        """Returns the row numbers of the ranges of one call, or of several."""
        if isinstance(at, slice):
            return [self[row] for row in range(*at.indices(len(self)))]
        rows = dict.fromkeys((int(self._best[at]), *self._inside[:, at].tolist()))
        return tuple(row for row in rows if row >= 0)

    def __len__(self) -> int:
        """Number of calls."""
        return len(self._best)


class CallColumns(Sequence[Call]):
    """A list of calls, kept as columns."""

    def __init__(
        self,
        kinds: CallKinds,
        kind: Ints,
        columns: dict[str, Ints],
        launching: Launching | None = None,
        kernels: dict[int, tuple[tuple[int, int], ...]] | None = None,
    ) -> None:
        """Keeps columns.

        Args:
            kinds: the kinds, by the ids in ``kind``.
            kind: the kind of each call.
            columns: the columns in ``_COLUMNS``.
            launching: c10d's ranges around the launch of each call; None if not known.
            kernels: kernels of each call that has several kernels, by the call's row.
        """
        self.kinds, self.kind = kinds, kind
        self.launching = launching
        self._columns, self._kernels = columns, kernels or {}
        self._calls: list[Call] | None = None

    @property
    def seq(self) -> Ints:
        """Sequence number of each call in its group; -1 if the recording has none."""
        return self._columns["seq"]

    @property
    def launch_ns(self) -> Ints:
        """Time of each call's launch."""
        return self._columns["launch_ns"]

    @property
    def launch_thread(self) -> Ints:
        """Thread that launched each call."""
        return self._columns["launch_thread"]

    @property
    def begin_ns(self) -> Ints:
        """Begin of each call."""
        return self._columns["begin_ns"]

    @property
    def end_ns(self) -> Ints:
        """End of each call."""
        return self._columns["end_ns"]

    @property
    def replay(self) -> Ints:
        """Correlation id of the CUDA graph launch that ran each call; -1 outside of graphs."""
        return self._columns["replay"]

    @property
    def timed(self) -> Mask:
        """True for the calls that have times."""
        return self.of_kind(_timed, np.bool_)

    def of_kind(self, value: Callable[[Call], Any], dtype: Any = np.int64) -> npt.NDArray[Any]:
        """Returns, for each call, ``value`` of the call's kind."""
        return self.kinds.column(value, dtype)[self.kind]

    def used(self) -> list[Call]:
        """Returns the different kinds of these calls."""
        return [self.kinds.kinds[number] for number in distinct(self.kind).tolist()]

    def all_timed(self) -> bool:
        """True if all calls have times."""
        return bool(self.timed.all())

    def transfers(self) -> tuple[Ints, Ints, Ints]:
        """Returns, for each kernel, the row of the kernel's call, the begin and the end."""
        if not self._kernels:
            rows = np.flatnonzero(self.timed)
            return rows, self.begin_ns[rows], self.end_ns[rows]
        several = [(row, *times) for row, call in enumerate(self) for times in call.times_ns]
        row, begin_ns, end_ns = np.array(several, np.int64).reshape(-1, 3).T
        return row, begin_ns, end_ns

    def changed(self, change: Callable[[Call], Call], kinds: CallKinds) -> CallColumns:
        """Returns the calls with kinds changed by a function; new kinds are added to ``kinds``."""
        different, kind_row = numbered(self.kind)
        numbers = [kinds.number(change(self.kinds.kinds[one])) for one in different.tolist()]
        kind = np.array(numbers, np.int64)[kind_row]
        return CallColumns(kinds, kind, self._columns, self.launching, self._kernels)

    def rows(self, chosen: Ints) -> CallColumns:
        """Returns the calls in some rows; no call may have several kernels."""
        assert not self._kernels
        columns = {name: column[chosen] for name, column in self._columns.items()}
        launching = None if self.launching is None else self.launching.rows(chosen)
        return CallColumns(self.kinds, self.kind[chosen], columns, launching)

    @overload
    def __getitem__(self, at: int) -> Call: ...

    @overload
    def __getitem__(self, at: slice) -> list[Call]: ...

    def __getitem__(self, at: int | slice) -> Call | list[Call]:
        """Returns a call, or several."""
        return self._all()[at]

    def __iter__(self) -> Iterator[Call]:
        """Yields the calls in order."""
        return iter(self._all())

    def __len__(self) -> int:
        """Number of calls."""
        return len(self.kind)

    def _all(self) -> list[Call]:
        if self._calls is None:
            columns = (self._columns[name].tolist() for name in _COLUMNS)
            self._calls = [
                replace(
                    self.kinds.kinds[kind],
                    **dict(zip(_COLUMNS, values, strict=True)),
                    launched_in=() if self.launching is None else self.launching[row],
                    kernels=self._kernels.get(row, ()),
                )
                for row, (kind, *values) in enumerate(
                    zip(self.kind.tolist(), *columns, strict=True)
                )
            ]
        return self._calls


def kinds_of(events: ProfilerEvents) -> CallKinds:
    """Returns the kinds of calls of a trace's job."""
    kinds: CallKinds = events.ranges.texts.known.setdefault(CallKinds, CallKinds())
    return kinds


def in_columns(kinds: CallKinds, calls: Iterable[Call]) -> CallColumns:
    """Converts calls to columns."""
    calls = list(calls)
    return CallColumns(
        kinds,
        np.array([kinds.number(call) for call in calls], np.int64),
        {name: np.array([getattr(call, name) for call in calls], np.int64) for name in _COLUMNS},
        None,
        {row: call.kernels for row, call in enumerate(calls) if call.kernels},
    )


def _timed(kind: Call) -> bool:
    return kind.timed
