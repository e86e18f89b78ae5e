"""Reads the events that commprof uses from one torch.profiler trace.

Communication, ranges, c10d's operators and copies between devices keep their names (``Event``).
Other events are kept in columns, without their names.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np

from commprof.recordings.json_events import Digits, EventReader, Scan, with_floats
from commprof.recordings.profiler_kinds import (
    BEGINS_OF,
    CATEGORIES,
    COLLECTIVE,
    COLUMN_OF,
    COPY_KIND,
    KEPT_ARGUMENTS,
    LAUNCHES,
    LIST_OF,
    OF_DEVICE,
    Category,
    EventKind,
    kind_of,
)
from commprof.recordings.profiler_named import Event, EventTable, EventTexts, Ints, NamedEvents
from commprof.recordings.profiler_processes import Processes
from commprof.recordings.profiler_words import (
    backend_of,
    has_certain_word,
    is_backend_of_torch,
    is_collective_range,
)
from commprof.text import printable

if TYPE_CHECKING:
    from commprof.recordings.profiler_scan import TraceScanner

#: Largest valid times: of events, in µs, and of ``baseTimeNanoseconds``.
_MOST_US: Final = 2.3e15
_MOST_BASE_NS: Final = 2_300_000_000_000_000_000
_DECIMAL: Final = re.compile(r"([0-9]{1,18})(?:\.([0-9]+))?")
_MOST_PROCESS: Final = 2**62
_MOST_NAMED: Final = 400_000
#: Largest number of events that the C++ scanner may leave to Python. After that, Python reads all
#: events.
_MOST_UNUSUAL: Final = 1000


@dataclass
class Intervals:
    """Events without names, in columns."""

    begin_ns: array[int] = field(default_factory=lambda: array("q"))
    end_ns: array[int] = field(default_factory=lambda: array("q"))
    #: Correlation id of a kernel or copy; thread of any other event.
    tag: array[int] = field(default_factory=lambda: array("q"))
    device: array[int] = field(default_factory=lambda: array("q"))

    def add(self, begin_ns: int, end_ns: int, tag: int, device: int = 0) -> None:
        """Adds one event."""
        self.begin_ns.append(begin_ns)
        self.end_ns.append(end_ns)
        self.tag.append(tag)
        self.device.append(device)

    def of_tag(self, tag: int) -> tuple[Ints, Ints]:
        """Returns the begins and ends of the events with a tag."""
        columns = (self.begin_ns, self.end_ns, self.tag)
        begin, end, tags = (np.array(column, np.int64) for column in columns)
        return begin[tags == tag], end[tags == tag]

    def __len__(self) -> int:
        """Number of events."""
        return len(self.begin_ns)


@dataclass
class ProfilerEvents:
    """Events of one trace; times in ns since 1970."""

    #: Communication on a device, in the order of the file.
    communication: NamedEvents
    #: Copies between devices; ``other_copies`` holds these copies too.
    between_devices: NamedEvents
    #: Host ranges of communication, steps or phases.
    ranges: NamedEvents
    #: Operators of c10d on the host.
    issued: NamedEvents
    head: dict[str, Any] = field(default_factory=dict)
    #: Kernels that are not in ``communication``.
    kernels: Intervals = field(default_factory=Intervals)
    #: Copies within a device.
    copies: Intervals = field(default_factory=Intervals)
    #: Copies between devices or between host and device, and fills.
    other_copies: Intervals = field(default_factory=Intervals)
    #: Operators of the host in which autograd evaluates its nodes.
    backward: Intervals = field(default_factory=Intervals)
    #: Operators of the host that wait.
    waits: Intervals = field(default_factory=Intervals)
    #: Operators of the host that only call other operators.
    callers: Intervals = field(default_factory=Intervals)
    #: All other operators of the host, except c10d's.
    operators: Intervals = field(default_factory=Intervals)
    #: Begins of the operators in which DDP copies a bucket into gradients.
    copied_back_ns: array[int] = field(default_factory=lambda: array("q"))
    #: Begins of operators that split a tensor into parts.
    chunked_ns: array[int] = field(default_factory=lambda: array("q"))
    #: Begin, thread and correlation id of each launch.
    launched_ns: array[int] = field(default_factory=lambda: array("q"))
    launching_thread: array[int] = field(default_factory=lambda: array("q"))
    launched: array[int] = field(default_factory=lambda: array("q"))
    #: Correlation ids of launches of CUDA graphs; ``launched`` holds these ids too.
    graph_launched: array[int] = field(default_factory=lambda: array("q"))
    #: Number of communicating kernels of which the recording has no details.
    unreadable: int = 0
    #: Name of the first such kernel.
    unreadable_name: str = ""
    #: Number of device events that commprof cannot interpret.
    other_device: int = 0
    #: Name of the first such event.
    other_device_name: str = ""
    #: Number of events without usable times.
    unusable: int = 0
    #: Number of events that are not valid JSON.
    passed_over: int = 0
    #: Number of values at the top level of the file that are not valid JSON.
    passed_over_in_head: int = 0
    problem: str = ""
    processes: list[str] = field(default_factory=list)
    #: Ids of the host's processes that have operators or ranges in the trace.
    of_host: set[str] = field(default_factory=set)
    #: True for a trace of Ascend's profiler, which does not show how many ranks the job has.
    is_of_npu: bool = False

    @property
    def about(self) -> dict[str, Any]:
        """What the trace says about the job: rank, world size, backend and process groups."""
        about = self.head.get("distributedInfo")
        return about if isinstance(about, dict) else {}

    @property
    def backends(self) -> set[str]:
        """Names of the job's backends, in lower case."""
        listed = self.about.get("pg_config")
        listed = listed if isinstance(listed, list) else []
        groups = [group for group in listed if isinstance(group, dict)]
        named = [self.about.get("backend"), *(group.get("backend_config") for group in groups)]
        text = ",".join(name.lower() for name in named if isinstance(name, str))
        return {pair.rpartition(":")[2] for pair in text.split(",") if pair}

    @property
    def backend_ranges(self) -> list[Event]:
        """Ranges in which a backend of torch or of the job ran a collective.

        Other ranges may be the script's own, such as ``data:gather``. If the recording does not
        name the job's backends, a range counts if its name has words that only collectives have.
        """
        return self.ranges.pick(self.backend_range_rows)

    @property
    def backend_range_rows(self) -> Ints:
        """Rows of ``backend_ranges`` in ``ranges``."""
        texts, backends = self.ranges.texts, self.backends
        is_range = texts.known.setdefault("backend_ranges", {})
        judge = is_range.setdefault(frozenset(backends), _of_backends(backends))
        return self.ranges.rows_named(judge)

    def keep(self, column: str, events: EventTable | Event) -> None:
        """Adds events to the list ``column``; drops events if the list is full.

        No real trace fills a list.
        """
        named_events: NamedEvents = getattr(self, column)
        room = _MOST_NAMED - len(named_events)
        if isinstance(events, EventTable):
            named_events.add(events.rows(slice(room)) if len(events.name) > room else events)
        elif room > 0:
            named_events.append(events)

    def note_process(self, category: Category, process: Any) -> None:
        """Keeps the process of an event, if the event is an operator or range of the host."""
        is_one = type(process) is str or (type(process) is int and abs(process) < _MOST_PROCESS)
        if category in (Category.OPERATOR, Category.RANGE) and is_one:
            self.of_host.add(str(process))

    def add_unreadable(self, name: str, count: int) -> None:
        """Counts communicating kernels of which the recording has no details."""
        self.unreadable += count
        self.unreadable_name = self.unreadable_name or printable(name[:60])

    def add_other_device(self, name: str, count: int) -> None:
        """Counts device events that commprof cannot interpret."""
        self.other_device += count
        self.other_device_name = self.other_device_name or printable(name[:60])


#: Fields of ``ProfilerEvents`` with events of a device, as ``Intervals``.
COLUMNS_OF_DEVICE: Final = ("kernels", "copies", "other_copies")
#: All fields of ``ProfilerEvents`` that are ``Intervals``.
COLUMNS: Final = (*COLUMNS_OF_DEVICE, "backward", "waits", "callers", "operators")
#: Fields of ``ProfilerEvents`` that are ``NamedEvents``.
NAMED: Final = ("communication", "between_devices", "ranges", "issued")


def no_events(texts: EventTexts) -> ProfilerEvents:
    """Returns the events of an empty trace."""
    return ProfilerEvents(
        *(NamedEvents(texts), NamedEvents(texts), NamedEvents(texts), NamedEvents(texts))
    )


def _of_backends(backends: Collection[str]) -> Callable[[str], bool]:
    def is_of_backend(name: str) -> bool:
        return is_collective_range(name) and (
            is_backend_of_torch(name)
            or backend_of(name) in backends
            or (not backends and has_certain_word(name))
        )

    return is_of_backend


def read_events(stream: BinaryIO, scanner: TraceScanner | None = None) -> ProfilerEvents:
    """Reads one trace to its end, or to the place where it is damaged.

    Args:
        stream: the trace.
        scanner: reads most events. Without a scanner, Python's json reads all events.

    Raises:
        ValueError: the file is not a trace.
    """
    if scanner is not None:
        scanner.begin_trace()
    found = no_events(EventTexts() if scanner is None else scanner.texts)
    pairs, processes = _Pairs(), Processes()
    scan = _scan_into(found, scanner) if scanner is not None else None
    reader = EventReader(stream, head=found.head, scan=scan)
    for events in reader.events():
        for event in events:
            if type(event) is not dict:
                continue
            if event.get("ph") == "X" and "cat" not in event:
                _take_of_process(event, processes, found)
            elif event.get("ph") == "X":
                _take(event, event, found)
            elif event.get("ph") == "M":
                processes.learn(event)
            elif event.get("ph") == "B":
                pairs.begin(event)
            elif event.get("ph") == "E":
                begun = pairs.begun_by(event)
                if begun is not None:
                    _take(begun, event, found)
    found.unusable += pairs.unended
    found.processes, found.is_of_npu = processes.names, processes.tasks > 0
    if processes.tasks and not len(found.kernels) and not len(found.communication):
        found.add_other_device("Ascend's NPU", processes.tasks)
    found.passed_over = reader.passed_over
    found.passed_over_in_head = reader.passed_over_in_head
    found.problem = reader.problem
    base = reader.head.get("baseTimeNanoseconds")
    if type(base) is int and 0 < base <= _MOST_BASE_NS:
        _shift(found, base)
    if not reader.found_events:
        raise ValueError("it holds no traceEvents")
    return found


def _scan_into(events: ProfilerEvents, scanner: TraceScanner) -> Scan:
    unusual = 0

    def scan(text: str, at: int) -> int | None:
        nonlocal unusual
        if unusual > _MOST_UNUSUAL:
            return None
        until = scanner.scan(text, at, events)
        unusual += scanner.is_unusual
        return until

    return scan


def _shift(found: ProfilerEvents, by_ns: int) -> None:
    """Converts times from the trace's own zero to times since 1970."""
    for named in NAMED:
        events: NamedEvents = getattr(found, named)
        events.shift(by_ns)
    columns = [found.launched_ns, *(getattr(found, name) for name in BEGINS_OF.values())]
    for name in COLUMNS:
        some: Intervals = getattr(found, name)
        columns += [some.begin_ns, some.end_ns]
    for column in columns:
        if column:
            np.frombuffer(column, dtype=np.int64)[:] += by_ns


class _Pairs:
    """Joins the begin and the end of an event, which some tools write as two events."""

    def __init__(self) -> None:
        self._open: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
        #: Number of events that have begun and not ended.
        self.unended = 0

    def begin(self, event: dict[str, Any]) -> None:
        thread = event.get("pid"), event.get("tid")
        if self.unended < _MOST_NAMED and all(type(part) in (str, int) for part in thread):
            self._open.setdefault(thread, []).append(event)
            self.unended += 1

    def begun_by(self, end: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the latest open event of the thread; None if no event is open.

        The arguments of ``end`` are added to the event.
        """
        thread = end.get("pid"), end.get("tid")
        if not all(type(part) in (str, int) for part in thread) or not self._open.get(thread):
            return None
        self.unended -= 1
        begun = self._open[thread].pop()
        arguments = [
            argument for argument in (begun.get("args"), end.get("args")) if type(argument) is dict
        ]
        return {**begun, "args": {key: argument[key] for argument in arguments for key in argument}}


def _take(event: dict[str, Any], end: dict[str, Any], events: ProfilerEvents) -> None:
    """Keeps an event if its category is used.

    Args:
        event: the event, with its begin.
        end: the same event, or the event that marks its end.
        events: the kept events.
    """
    category, name = event.get("cat"), event.get("name")
    of_category = CATEGORIES.get(category) if type(category) is str else None
    if of_category is None or type(name) is not str:
        return
    arguments = event.get("args")
    arguments = arguments if type(arguments) is dict else {}
    if isinstance(copied := arguments.get(COPY_KIND), str) and type(copied) is not Digits:
        is_whole = end is event
        event = {**event, "name": f"{name} {copied}"}
        end = event if is_whole else end
    kind = kind_of(of_category, event["name"], COLLECTIVE in arguments)
    if _put_if_timed(kind, event, end, arguments, events):
        events.note_process(of_category, event.get("pid"))


def _take_of_process(event: dict[str, Any], processes: Processes, events: ProfilerEvents) -> None:
    kind, arguments = processes.kind_of(event)
    if kind is not EventKind.UNUSED:
        _put_if_timed(kind, event, event, arguments, events)


def _put_if_timed(
    kind: EventKind,
    event: dict[str, Any],
    end: dict[str, Any],
    arguments: dict[str, Any],
    events: ProfilerEvents,
) -> bool:
    """Keeps an event unless its kind is ``UNUSED``; returns False if its times are unusable."""
    try:
        begin = _moment_ns(event["ts"])
        # Some tools write ns since 1970 instead of µs; the length is then in ns, too.
        in_ns = type(event["ts"]) is int and event["ts"] >= _MOST_US
        length = end.get("dur", 0) if end is event else 0
        until = begin + (_whole_ns(length) if in_ns else _ns(length))
        if end is not event:
            until = _moment_ns(end["ts"])
        if until < begin:
            raise ValueError
    except (KeyError, TypeError, ValueError, OverflowError):
        events.unusable += 1
        return False
    if kind is not EventKind.UNUSED:
        thread = _int(event.get("tid"))
        _put(kind, Event(event["name"], begin, until, thread, 0, -1, arguments), events)
    return True


def _moment_ns(value: Any) -> int:
    return _whole_ns(value) if type(value) is int and value >= _MOST_US else _ns(value)


def _ns(value_us: Any) -> int:
    """Converts µs to the nearest ns. Texts of digits are converted exactly."""
    # The json reader keeps numbers with a point as text; very old traces have quoted numbers.
    if isinstance(value_us, str):
        match = _DECIMAL.fullmatch(value_us)
        if match is None:
            value_us = float(value_us)
        else:
            whole_us, digits = int(match[1]), match[2] or ""
            if whole_us >= _MOST_US:
                raise ValueError
            return whole_us * 1000 + _rounded(digits)
    if not 0 <= value_us < _MOST_US:
        raise ValueError
    if type(value_us) is int:
        return value_us * 1000
    whole = math.floor(value_us)
    return whole * 1000 + round((value_us - whole) * 1000)


def _rounded(digits: str) -> int:
    """Rounds the digits after a decimal point to thousandths, and halves to even numbers."""
    thousandths, rest = int(digits[:3].ljust(3, "0")), digits[3:]
    if rest[:1] >= "5" and (rest[0] > "5" or rest.strip("0") != "5" or thousandths % 2):
        return thousandths + 1
    return thousandths


def _whole_ns(value: Any) -> int:
    if isinstance(value, str):
        value = float(value)
    if not 0 <= value < _MOST_BASE_NS:
        raise ValueError
    return int(value)


def _put(kind: EventKind, event: Event, events: ProfilerEvents) -> None:
    arguments, begin, end = event.arguments, event.begin_ns, event.end_ns
    if kind in LAUNCHES:
        events.launched_ns.append(begin)
        events.launching_thread.append(event.thread)
        correlation = _int(arguments.get("correlation"))
        events.launched.append(correlation)
        if kind is EventKind.GRAPH_LAUNCH:
            events.graph_launched.append(correlation)
        return
    if kind in LIST_OF:
        kept_arguments = {key: arguments[key] for key in KEPT_ARGUMENTS if key in arguments}
        event = event._replace(arguments=with_floats(kept_arguments))
    if kind in OF_DEVICE:
        stream = _int(arguments["stream"]) if "stream" in arguments else event.thread
        device, correlation = (_int(arguments.get(key)) for key in ("device", "correlation"))
        event = event._replace(thread=stream, device=device, correlation=correlation)
    if kind in LIST_OF:
        events.keep(LIST_OF[kind], event)
    if kind in COLUMN_OF:
        tag = event.correlation if kind in OF_DEVICE else event.thread
        getattr(events, COLUMN_OF[kind]).add(begin, end, tag, event.device)
    if kind in BEGINS_OF:
        getattr(events, BEGINS_OF[kind]).append(begin)
    elif kind is EventKind.UNREADABLE_KERNEL:
        events.add_unreadable(event.name, 1)
    elif kind is EventKind.OTHER_DEVICE:
        events.add_other_device(event.name, 1)


def _int(value: Any) -> int:
    """Returns an integer that a column can hold; -1 for any other value."""
    if type(value) is str and value.isdecimal() and len(value) < 19:
        value = int(value)
    return value if type(value) is int and -(2**62) <= value < 2**62 else -1
