"""Reads traces of ``torch.profiler`` and converts their times to the clock of a run.

The text of a trace is held in memory. Its events are read one at a time, because all of them
together could take several gigabytes as Python objects.

torch.profiler writes Unix time, and commprof writes ``CLOCK_MONOTONIC``. The difference of the two
clocks when capture began converts one to the other. If the wall clock has drifted since then, the
times of the two profilers differ by this drift. NTP slews a clock by at most 500 ppm. A jump of the
wall clock shifts all events of torch.profiler.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from commprof.analysis.timeline.overview import Overview, Window
from commprof.errors import CommprofError
from commprof.files import checked, read_bytes
from commprof.invocation import quoted
from commprof.text import named_ranks
from commprof.trace.columns import Ints

#: Largest time that is accepted; it fits into 64 bits in nanoseconds.
_MOST_US = 2e15
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[\s,:]*")


@dataclass(frozen=True)
class TorchTrace:
    """A trace that torch.profiler wrote for one process."""

    path: Path
    #: Unix time, in ns, from which the times in the trace count.
    base_ns: int
    #: Rank in ``distributedInfo``; None if no process group existed when the trace was written.
    rank: int | None
    #: Process ids of the events. Ids that are not numbers are left out.
    pids: frozenset[int]
    #: Start of the first event, in µs since ``base_ns``.
    first_us: float
    text: str = field(repr=False)
    #: Position in ``text`` at which the array of events begins.
    events_at: int

    def events(self) -> Iterator[dict[str, Any]]:
        """Yields every event as written. Times are in µs, and ``ts`` counts from ``base_ns``."""
        position = _skip(self.text, self.events_at + 1)
        while self.text[position : position + 1] not in ("]", ""):
            event, position = _value(self.text, position, self.path)
            if isinstance(event, dict):
                yield event
            position = _skip(self.text, position)


def read_torch_trace(path: Path) -> TorchTrace:
    """Reads a trace of torch.profiler; ``TorchTrace.events`` gives its events.

    Raises:
        CommprofError: the file cannot be opened, or is not a torch.profiler trace with a base time.
    """
    text = _text(path)
    head, events_at, seen = _head(text, path)
    base_ns = head.get("baseTimeNanoseconds")
    if events_at is None or not isinstance(base_ns, int):
        raise CommprofError(
            f"{quoted(path)} is not a trace of torch.profiler: it lacks "
            f"{'traceEvents' if events_at is None else 'baseTimeNanoseconds'}; give a file that "
            "export_chrome_trace() or tensorboard_trace_handler() wrote"
        )
    distributed = head.get("distributedInfo")
    rank = distributed.get("rank") if isinstance(distributed, dict) else None
    return TorchTrace(
        path=path,
        base_ns=base_ns,
        rank=rank if isinstance(rank, int) else None,
        pids=frozenset(seen.pids),
        first_us=seen.first_us,
        text=text,
        events_at=events_at,
    )


def _text(path: Path) -> str:
    try:
        data = read_bytes(path)
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return data.decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise CommprofError(f"{quoted(path)} cannot be read: {why}") from None


@dataclass
class _Seen:
    pids: set[int] = field(default_factory=set)
    first_us: float = math.inf
    events: int = 0

    def add(self, event: Any) -> None:
        """Adds one event.

        Raises:
            ValueError: ``ts`` is not a time.
        """
        self.events += 1
        if not isinstance(event, dict) or event.get("ph") == "M":
            return
        pid, time_us = event.get("pid"), event.get("ts")
        if isinstance(pid, int):
            self.pids.add(pid)
        if time_us is not None:
            self.first_us = min(self.first_us, checked(time_us, float, "ts"))
            if not abs(time_us) < _MOST_US:
                raise ValueError(f"ts is not a time in microseconds: {time_us!r}")


def _head(text: str, path: Path) -> tuple[dict[str, Any], int | None, _Seen]:
    """Goes through the text of a trace once.

    Returns:
        Three values: the top-level values of the trace without its events; the position in ``text``
        at which the array of events begins, or None without such an array; figures on all events.
    """
    head: dict[str, Any] = {}
    events_at, seen = None, _Seen()
    position = _skip(text, 0)
    if text[position : position + 1] != "{":
        return head, None, seen
    position = _skip(text, position + 1)
    while text[position : position + 1] == '"':
        key, position = _value(text, position, path)
        position = _skip(text, position)
        if key == "traceEvents" and text[position : position + 1] == "[":
            events_at = position
            position = _skip(text, position + 1)
            while text[position : position + 1] not in ("]", ""):
                event, position = _value(text, position, path)
                position = _skip(text, position)
                try:
                    seen.add(event)
                except ValueError as error:
                    raise CommprofError(f"{quoted(path)}: event {seen.events}: {error}") from None
            position += 1
        else:
            head[str(key)], position = _value(text, position, path)
        position = _skip(text, position)
    return head, events_at, seen


def _value(text: str, position: int, path: Path) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, position)
    except (ValueError, RecursionError) as error:
        raise CommprofError(f"{quoted(path)} cannot be read as JSON: {error}") from None


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None
    return match.end()


_CHUNK = 4096
#: Processes of torch.profiler get ids from this number on. The ranks' process ids are smaller.
_FIRST_PID = 1_000_000
#: Largest time of a 64-bit clock.
_NEVER_NS = 2**63 - 1
#: Arrows of torch.profiler get ids from this number on. The ids of commprof's arrows are smaller.
_FIRST_ARROW = 2**40


def rank_index(view: Overview, trace: TorchTrace) -> int:
    """Returns the index in ``view.ranks`` of the rank to which a trace belongs.

    The rank is that in ``distributedInfo``, else that of the process id, else that in the file's
    name.

    Raises:
        CommprofError: the trace belongs to no rank of the run.
    """
    named = re.search(r"rank[_-]?(\d+)", trace.path.name)
    same_pid = [rank for rank, pid in zip(view.ranks, view.pids, strict=True) if pid in trace.pids]
    if trace.rank is not None:
        wanted = trace.rank
    elif len(same_pid) == 1:
        wanted = same_pid[0]
    else:
        wanted = int(named[1]) if named else -1
    if wanted not in view.ranks:
        raise CommprofError(
            f"{trace.path} does not belong to a rank of this run: it names "
            f"{'no rank' if wanted < 0 else f'rank {wanted}'} in its contents or file name "
            f"(allowed: traces of {named_ranks(view.ranks)}); if the contents "
            "name no rank, put rank_N into the file name, where N is the rank"
        )
    return view.ranks.index(wanted)


def with_all_of(view: Overview, traces: Sequence[TorchTrace]) -> Overview:
    """Extends the window of the overview, so that it contains all events of these traces.

    Times count from the start of the window, and viewers drop events with a negative time.
    """
    begins = [view.window.begin_ns]
    for trace in traces:
        if math.isfinite(trace.first_us):
            first_ns = [round(trace.first_us * 1000)]
            begins += _common_ns(view, rank_index(view, trace), trace, first_ns).tolist()
    return replace(view, window=Window(min(begins), _NEVER_NS)) if traces else view


def torch_events(view: Overview, trace: TorchTrace, number: int) -> Iterator[dict[str, Any]]:
    """Yields the events that overlap the overview's window, with new process ids.

    ``ts`` becomes the time since the start of the window, in µs. The part of an event before the
    window is cut off. Starts and ends are converted in the same way, so that nested events stay
    nested: Perfetto drops an event that ends 1 ns after its parent
    (``findings/perfetto_drops_slices_that_touch.sh``).

    Args:
        view: overview of the run.
        trace: trace of one rank of the run.
        number: index of the trace among the merged traces, from 0.

    Raises:
        CommprofError: see :func:`rank_index`.
    """
    index = rank_index(view, trace)
    pids: dict[Any, int] = {}
    events = trace.events()
    while chunk := list(islice(events, _CHUNK)):
        begins_ns = [
            round(1000 * (event.get("ts") or 0)) if _has_time(event) else 0 for event in chunk
        ]
        lengths_ns = [_length_ns(event) for event in chunk]
        ends_ns = [
            begin + (length or 0) for begin, length in zip(begins_ns, lengths_ns, strict=True)
        ]
        begins = _common_ns(view, index, trace, begins_ns)
        ends = _common_ns(view, index, trace, ends_ns)
        shown = view.window.holds(begins, ends)
        begins, ends = begins - view.window.begin_ns, ends - view.window.begin_ns
        for event, length, begin_ns, end_ns, is_shown in zip(
            chunk, lengths_ns, begins.tolist(), ends.tolist(), shown.tolist(), strict=True
        ):
            if is_shown and length is not None:
                begin_ns = max(0, begin_ns)
                event["dur"] = (end_ns - begin_ns) / 1000
            if is_shown or not _has_time(event):
                place = pids.setdefault(str(event.get("pid")), len(pids))
                pid = _FIRST_PID * (number + 1) + place
                arrow = _FIRST_ARROW * (number + 1)
                yield from _moved(event, pid, view.ranks[index], place, begin_ns, arrow)


def _has_time(event: dict[str, Any]) -> bool:
    """False for metadata events, such as the name of a process."""
    return event.get("ph") != "M"


def _length_ns(event: dict[str, Any]) -> int | None:
    length = event.get("dur")
    if event.get("ph") != "X" or not isinstance(length, int | float):
        return None
    return round(1000 * length) if 0 <= length < _MOST_US else None


def _common_ns(view: Overview, index: int, trace: TorchTrace, times_ns: Sequence[int]) -> Ints:
    """Converts times in ns since ``base_ns`` to the common clock."""
    offset_ns = trace.base_ns - view.unix_offsets_ns[index]
    own_ns = [time_ns + offset_ns for time_ns in times_ns]
    return view.clocks[index].to_common(np.array(own_ns, dtype=np.int64))


def _moved(
    event: dict[str, Any], pid: int, rank: int, place: int, time_ns: int, first_arrow: int
) -> Iterator[dict[str, Any]]:
    """Yields ``event`` with a new process id and time.

    If the event names its process, first yields an event that sets the place of the process in the
    viewer. ``first_arrow`` is added to the ids of flow events, which viewers draw as arrows.
    """
    name = event.get("name")
    if name == "process_sort_index":
        return
    event = {**event, "pid": pid}
    if name == "process_name" and isinstance(event.get("args"), dict):
        event["args"] = {"name": f"rank {rank}, torch.profiler: {event['args'].get('name', '')}"}
        order = {"sort_index": sort_index(rank) + 1 + place}
        yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": order}
    if "ts" in event and _has_time(event):
        event["ts"] = time_ns / 1000
    if isinstance(event.get("id"), int) and event.get("ph") in ("s", "t", "f"):
        event["id"] += first_arrow
    yield event


def sort_index(rank: int) -> int:
    """Returns the sort index that sets the place of a rank's process in the viewer.

    The processes of the rank's torch.profiler traces get the next sort indices.
    """
    return 1000 * rank
