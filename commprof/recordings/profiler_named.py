"""Keeps events of a torch.profiler trace in columns, with their names and arguments.

All ranks of a job have nearly the same names and arguments, so results that depend only on names
and arguments are computed once per job.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, overload

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: Arguments that are kept as columns, because they differ from event to event.
SEQ: Final = "Seq"
EXTERNAL_ID: Final = "External id"
_EXTERNAL_IDS: Final = (EXTERNAL_ID, "external id")
INTEGERS: Final = (SEQ, *_EXTERNAL_IDS)
#: Value in such a column if the event lacks the argument.
ABSENT: Final = -1
#: Value in such a column if the argument is not a whole number from 0 to 2^62 - 1.
NO_INTEGER: Final = -2
#: Value that the C++ scanner returns if Python must parse the argument, such as non-ASCII digits.
UNDECIDED: Final = -3
_MOST_INTEGER: Final = 1 << 62
_WITHOUT_REFERENCES: Final = 2


class Event(NamedTuple):
    """A communication kernel, an operator of c10d or an annotated range of the host."""

    name: str
    begin_ns: int
    end_ns: int
    #: Host thread of the event; for a kernel, its stream.
    thread: int
    device: int
    correlation: int
    arguments: dict[str, Any]


class EventTexts:
    """Names and arguments of all traces of a job, each with an index."""

    def __init__(self) -> None:
        """Begins without names and arguments."""
        self.names: list[str] = []
        #: Arguments without ``INTEGERS``. They must not be changed.
        self.arguments: list[dict[str, Any]] = []
        #: Cache for results that readers compute from the indices.
        self.known: dict[Any, Any] = {}
        self._number_of_name: dict[str, int] = {}
        self._number_of_arguments: dict[bytes, int] = {}
        self._masks: dict[Callable[[str], bool], Mask] = {}

    def name(self, name: str) -> int:
        """Returns the index of a name."""
        number = self._number_of_name.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        return number

    def of_arguments(self, arguments: dict[str, Any]) -> int:
        """Returns the index of these arguments, without ``INTEGERS``."""
        key = marshal.dumps(list(arguments.items()), _WITHOUT_REFERENCES)
        number = self._number_of_arguments.setdefault(key, len(self.arguments))
        if number == len(self.arguments):
            self.arguments.append(arguments)
        return number

    def mask(self, is_such: Callable[[str], bool]) -> Mask:
        """Returns, for each name, whether ``is_such`` accepts it.

        Results are cached by function, so pass the same function object each time.
        """
        known = self._masks.get(is_such, np.zeros(0, np.bool_))
        if len(known) < len(self.names):
            new = [is_such(name) for name in self.names[len(known) :]]
            known = self._masks[is_such] = np.concatenate((known, np.array(new, np.bool_)))
        return known


class EventTable(NamedTuple):
    """Columns of named events; ``name`` and ``arguments`` are indices in ``EventTexts``."""

    name: Ints
    arguments: Ints
    begin_ns: Ints
    end_ns: Ints
    thread: Ints
    device: Ints
    correlation: Ints
    #: ``ABSENT``, ``NO_INTEGER``, or a number from 0 to 2^62 - 1.
    seq: Ints
    external_id: Ints

    def rows(self, chosen: Ints | Mask | slice) -> EventTable:
        """Returns a table with some of the rows."""
        return EventTable(*(column[chosen] for column in self))


_EMPTY: Final = EventTable(*(np.zeros(0, np.int64) for _ in EventTable._fields))


def joined(tables: Sequence[EventTable]) -> EventTable:
    """Joins several tables into one."""
    if len(tables) == 1:
        return tables[0]
    return EventTable(*map(np.concatenate, zip(*tables, strict=True))) if tables else _EMPTY


class NamedEvents(Sequence[Event]):
    """A list of events, kept as columns."""

    def __init__(self, texts: EventTexts) -> None:
        """Makes an empty list."""
        self.texts = texts
        self._parts: list[EventTable] = []
        self._added: list[Event] = []
        self._events: list[Event] | None = None
        self._length = 0

    @property
    def table(self) -> EventTable:
        """The columns, which must not be changed."""
        self._flush()
        if len(self._parts) != 1:
            self._parts = [joined(self._parts)]
        return self._parts[0]

    def append(self, event: Event) -> None:
        """Adds an event."""
        self._added.append(event)
        self._events = None
        self._length += 1

    def extend(self, events: Iterable[Event]) -> None:
        """Adds events."""
        for event in events:
            self.append(event)

    def add(self, table: EventTable) -> None:
        """Adds the events of a table."""
        self._flush()
        self._parts.append(table)
        self._events = None
        self._length += len(table.name)

    def shift(self, by_ns: int) -> None:
        """Adds a number of ns to all times."""
        table = self.table
        begin_ns, end_ns = table.begin_ns + by_ns, table.end_ns + by_ns
        self._parts = [table._replace(begin_ns=begin_ns, end_ns=end_ns)]
        self._events = None

    def rows_named(self, is_such: Callable[[str], bool]) -> Ints:
        """Returns the rows of the events whose names a function accepts, in order."""
        return np.flatnonzero(self._mask(is_such))

    def named(self, is_such: Callable[[str], bool]) -> list[Event]:
        """Returns the events whose names a function accepts, in order."""
        return self.pick(self.rows_named(is_such))

    def any_named(self, is_such: Callable[[str], bool]) -> bool:
        """True if a function accepts the name of an event."""
        return bool(self._mask(is_such).any())

    def pick(self, rows: Ints) -> list[Event]:
        """Returns the events in some rows."""
        if len(rows) == 0:
            return []
        table, texts = self.table.rows(rows), self.texts
        names = [texts.names[number] for number in table.name.tolist()]
        arguments = [
            _with_integers(texts.arguments[number], seq, external_id)
            for number, seq, external_id in zip(
                *(column.tolist() for column in (table.arguments, table.seq, table.external_id)),
                strict=True,
            )
        ]
        columns = (column.tolist() for column in table[2:7])
        return list(map(Event._make, zip(names, *columns, arguments, strict=True)))

    @overload
    def __getitem__(self, at: int) -> Event: ...

    @overload
    def __getitem__(self, at: slice) -> list[Event]: ...

    def __getitem__(self, at: int | slice) -> Event | list[Event]:
        """Returns an event, or several."""
        return self._all()[at]

    def __iter__(self) -> Iterator[Event]:
        """Yields the events in order."""
        return iter(self._all())

    def __len__(self) -> int:
        """Number of events."""
        return self._length

    def __eq__(self, other: object) -> bool:
        """True for lists of equal events."""
        return isinstance(other, NamedEvents) and self._all() == other._all()

    __hash__ = None  # type: ignore[assignment]

    def _all(self) -> list[Event]:
        if self._events is None:
            self._events = self.pick(np.arange(self._length))
        return self._events

    def _mask(self, is_such: Callable[[str], bool]) -> Mask:
        names = self.table.name  # first, because making the table may add names
        return self.texts.mask(is_such)[names]

    def _flush(self) -> None:
        if self._added:
            added, self._added = self._added, []
            rows = [self._row(event) for event in added]
            self._parts.append(EventTable(*np.array(rows, np.int64).T))

    def _row(self, event: Event) -> tuple[int, ...]:
        given = event.arguments
        seq, *ids = (whole_number(given[key]) if key in given else ABSENT for key in INTEGERS)
        external_id = next((number for number in ids if number != ABSENT), ABSENT)
        rest = {key: value for key, value in given.items() if key not in INTEGERS}
        about = self.texts.name(event.name), self.texts.of_arguments(rest)
        return (*about, *event[1:6], seq, external_id)


def named_events(texts: EventTexts, events: Iterable[Event]) -> NamedEvents:
    """Makes a list of events."""
    made = NamedEvents(texts)
    made.extend(events)
    return made


def external_ids(integers: Ints) -> Ints:
    """Returns the External ids, which are in one of two columns of ``INTEGERS``."""
    first, second = integers[:, 1], integers[:, 2]
    return np.where(first == ABSENT, second, first)


def whole_number(value: Any) -> int:
    """Converts a number or text to a whole number; ``NO_INTEGER`` for any other value."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        value = int(value)
    return value if type(value) is int and 0 <= value < _MOST_INTEGER else NO_INTEGER


def _with_integers(arguments: dict[str, Any], seq: int, external_id: int) -> dict[str, Any]:
    if seq == external_id == ABSENT:
        return arguments
    pairs = ((SEQ, seq), (EXTERNAL_ID, external_id))
    told = {key: None if value == NO_INTEGER else value for key, value in pairs if value != ABSENT}
    return {**arguments, **told}
