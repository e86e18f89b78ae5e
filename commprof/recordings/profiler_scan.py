"""Reads the events of torch.profiler traces with the C++ scanner.

The scanner returns the events of a piece of text as columns, with indices in place of names. The
kind of an event (:mod:`profiler_kinds`) is determined once for each name. The scanner stops before
an event that is written in an unusual way; :mod:`profiler_events` reads such an event with Python's
json.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from commprof.recordings.profiler_kinds import (
    BEGINS_OF,
    CATEGORIES,
    COLLECTIVE,
    COLUMN_OF,
    KEPT_ARGUMENTS,
    LAUNCHES,
    LIST_OF,
    OF_DEVICE,
    Category,
    EventKind,
    kind_of,
)
from commprof.recordings.profiler_named import (
    INTEGERS,
    UNDECIDED,
    EventTable,
    EventTexts,
    external_ids,
    whole_number,
)

if TYPE_CHECKING:
    from commprof._reading import TraceEventScanner
    from commprof.recordings.profiler_events import ProfilerEvents

Ints = npt.NDArray[np.int64]

#: Arguments that are kept and are not columns.
_KEPT: Final = tuple(key for key in KEPT_ARGUMENTS if key not in INTEGERS)
_UNKNOWN: Final = -1
#: A scanner with more names, values or arguments than this is emptied before the next trace.
_MOST_TEXTS: Final = 200_000


def _mask(kinds: Collection[EventKind]) -> npt.NDArray[np.bool_]:
    return np.array([kind in kinds for kind in EventKind], np.bool_)


_KINDS_IN: Final = {
    place: [kind for kind in EventKind if COLUMN_OF.get(kind) == place]
    for place in dict.fromkeys(COLUMN_OF.values())
}
_MASK_OF: Final = {place: _mask(kinds) for place, kinds in _KINDS_IN.items()}
_IS_LAUNCH: Final = _mask(LAUNCHES)
_OF_CATEGORY: Final = list(CATEGORIES.values())
_CATEGORY_CODES: Final = np.array([int(category) for category in CATEGORIES.values()], np.int64)


class _Columns(NamedTuple):
    name: Ints
    begin_ns: Ints
    end_ns: Ints
    thread: Ints
    correlation: Ints
    device: Ints
    stream: Ints


class TraceScanner:
    """The C++ scanner, with the names and arguments of the events that it has read.

    One scanner reads all traces of a job, because events of all ranks have the same names.
    """

    def __init__(self) -> None:
        """Makes a scanner.

        Raises:
            ImportError: commprof's C++ module is missing.
        """
        self._begin()

    def _begin(self) -> None:
        from commprof._reading import TraceEventScanner

        self._scanner: TraceEventScanner = TraceEventScanner(
            list(CATEGORIES), list(_KEPT), list(INTEGERS), COLLECTIVE
        )
        self._names: list[str] = []
        #: Kind of event, by [2 * category + is_collective, name]; -1 if not known yet.
        self._kinds = np.full((2 * len(Category), 0), _UNKNOWN, np.int8)
        self._values: list[Any] = []
        self.texts = EventTexts()
        #: Index of a name in ``texts``, by the scanner's index of the name.
        self._name_in_texts = np.zeros(0, np.int64)
        #: Index of arguments in ``texts``, by the scanner's index of the arguments.
        self._arguments_in_texts = np.zeros(0, np.int64)

    def begin_trace(self) -> None:
        """Forgets all names and arguments if there are too many."""
        counts = len(self._names), len(self._values), len(self._arguments_in_texts)
        if max(counts) > _MOST_TEXTS:
            self._begin()

    @property
    def is_unusual(self) -> bool:
        """True if the last scan stopped at an event that the scanner leaves to Python's json."""
        return self._scanner.is_unusual

    def scan(self, text: str, at: int, events: ProfilerEvents) -> int:
        """Reads the events from a position on; returns the position where the scan stopped."""
        scanner = self._scanner
        until = scanner.scan(text, at)
        for number, process in scanner.processes:
            events.note_process(_OF_CATEGORY[number], json.loads(process))
        category = scanner.category
        if len(category):
            columns = _Columns(*(getattr(scanner, name) for name in _Columns._fields))
            kind = self._kinds_of(_CATEGORY_CODES[category], scanner.is_collective, columns.name)
            self._sort(columns, kind, np.bincount(kind, minlength=len(EventKind)), events)
        return until

    def _kinds_of(self, category: Ints, is_collective: Ints, name: Ints) -> Ints:
        new_names = [json.loads(text) for text in self._scanner.names(len(self._names))]
        if new_names:
            self._names += new_names
            numbers = np.array([self.texts.name(text) for text in new_names], np.int64)
            self._name_in_texts = np.concatenate((self._name_in_texts, numbers))
        count = len(self._names)
        if count > self._kinds.shape[1]:
            more = np.full((len(self._kinds), count - self._kinds.shape[1] + 64), _UNKNOWN, np.int8)
            self._kinds = np.concatenate((self._kinds, more), axis=1)
        row = 2 * category + is_collective
        kind = self._kinds[row, name]
        unknown = np.flatnonzero(kind == _UNKNOWN)
        if len(unknown):
            new = np.unique(row[unknown] * count + name[unknown])
            for each_row, number in zip(
                (new // count).tolist(), (new % count).tolist(), strict=True
            ):
                self._kinds[each_row, number] = kind_of(
                    Category(each_row // 2), self._names[number], bool(each_row % 2)
                )
            kind = self._kinds[row, name]
        return kind.astype(np.int64)

    def _sort(self, columns: _Columns, kind: Ints, counts: Ints, events: ProfilerEvents) -> None:
        name, begin, end, thread, correlation, device, _ = columns
        for place, mask in _MASK_OF.items():
            if not counts[mask].any():
                continue
            rows = np.flatnonzero(mask[kind])
            is_of_device = _KINDS_IN[place][0] in OF_DEVICE
            column = getattr(events, place)
            column.begin_ns.frombytes(begin[rows].tobytes())
            column.end_ns.frombytes(end[rows].tobytes())
            column.tag.frombytes((correlation if is_of_device else thread)[rows].tobytes())
            zeros = np.zeros(len(rows), np.int64)
            column.device.frombytes((device[rows] if is_of_device else zeros).tobytes())
        for of_kind, field_name in BEGINS_OF.items():
            if counts[of_kind]:
                getattr(events, field_name).frombytes(begin[kind == of_kind].tobytes())
        if counts[_IS_LAUNCH].any():
            rows = np.flatnonzero(_IS_LAUNCH[kind])
            events.launched_ns.frombytes(begin[rows].tobytes())
            events.launching_thread.frombytes(thread[rows].tobytes())
            events.launched.frombytes(correlation[rows].tobytes())
            of_graphs = correlation[kind == EventKind.GRAPH_LAUNCH]
            events.graph_launched.frombytes(of_graphs.tobytes())
        for of_kind, count_in in (
            (EventKind.UNREADABLE_KERNEL, events.add_unreadable),
            (EventKind.OTHER_DEVICE, events.add_other_device),
        ):
            if counts[of_kind]:
                first = int(np.flatnonzero(kind == of_kind)[0])
                count_in(self._names[int(name[first])], int(counts[of_kind]))
        for of_kind in LIST_OF:
            if counts[of_kind]:
                self._keep_named(columns, of_kind, np.flatnonzero(kind == of_kind), events)

    def _keep_named(
        self, columns: _Columns, kind: EventKind, rows: Ints, events: ProfilerEvents
    ) -> None:
        scanner = self._scanner
        combination, integers = scanner.arguments(rows)
        undecided = integers == UNDECIDED
        for row, column in np.argwhere(undecided).tolist() if undecided.any() else ():
            told = json.loads(scanner.arguments_text(int(rows[row])))
            integers[row, column] = whole_number(told[INTEGERS[column]])
        self._learn_arguments()
        on_device = kind in OF_DEVICE
        nothing, zeros = np.full(len(rows), -1, np.int64), np.zeros(len(rows), np.int64)
        table = EventTable(
            name=self._name_in_texts[columns.name[rows]],
            arguments=self._arguments_in_texts[combination],
            begin_ns=columns.begin_ns[rows],
            end_ns=columns.end_ns[rows],
            thread=(columns.stream if on_device else columns.thread)[rows],
            device=columns.device[rows] if on_device else zeros,
            correlation=columns.correlation[rows] if on_device else nothing,
            seq=integers[:, 0] if len(rows) else zeros,
            external_id=external_ids(integers) if len(rows) else zeros,
        )
        events.keep(LIST_OF[kind], table)

    def _learn_arguments(self) -> None:
        new = self._scanner.combinations(len(self._arguments_in_texts))
        if not new:
            return
        self._values += [json.loads(text) for text in self._scanner.values(len(self._values))]
        numbers = [
            self.texts.of_arguments(
                {
                    key: self._values[value]
                    for key, value in zip(_KEPT, combination, strict=True)
                    if value >= 0
                }
            )
            for combination in new
        ]
        self._arguments_in_texts = np.concatenate(
            (self._arguments_in_texts, np.array(numbers, np.int64))
        )


def trace_scanner() -> TraceScanner | None:
    """Returns a scanner; None if commprof's C++ module is missing."""
    try:
        return TraceScanner()
    except ImportError:
        return None
