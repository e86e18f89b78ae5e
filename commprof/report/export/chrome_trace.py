"""Timelines in the Chrome trace format, which Perfetto and chrome://tracing open.

Format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
Times are in microseconds since the begin of the exported part, with three decimals.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO

from commprof.analysis.timeline.rank import Column, RankActivity, Track

#: Slices are turned into text in chunks of this many, to limit the use of memory.
_CHUNK = 4096
#: Name of an arrow. The format demands that the two ends have the same name.
_ARROW = '"name":"last to arrive","cat":"arrivals"'


def write(out: TextIO, about: Mapping[str, Any], events: Iterable[str]) -> int:
    """Writes a trace event by event.

    Args:
        out: file to write to.
        about: facts about the whole run, shown by viewers as the trace's metadata.
        events: events, each a JSON object as text.

    Returns:
        The number of events.
    """
    out.write('{"displayTimeUnit":"ms","otherData":' + json.dumps(about) + ',"traceEvents":[\n')
    count = 0
    for event in events:
        out.write(event if count == 0 else ",\n" + event)
        count += 1
    out.write("\n]}\n")
    return count


def rank_events(timeline: RankActivity, origin_ns: int, sort_index: int) -> Iterator[str]:
    """Yields all events of one rank. In the trace, the rank is a process with a thread per lane.

    Args:
        timeline: timeline of the rank.
        origin_ns: time that becomes 0.
        sort_index: position of the rank's process among all processes.
    """
    pid = timeline.rank
    yield _metadata(pid, 0, "process_name", name=f"rank {pid}, {timeline.host}")
    yield _metadata(pid, 0, "process_sort_index", sort_index=sort_index)
    # Perfetto treats the thread whose id equals the process id as the main thread, and shows it
    # first. So no lane gets this id.
    free = (number for number in itertools.count(1) if number != pid)
    for track in timeline.tracks:
        tids = list(itertools.islice(free, int(track.lane.max(initial=-1)) + 1))
        for lane, tid in enumerate(tids, start=1):
            name = track.name if len(tids) == 1 else f"{track.name} {lane}"
            yield _metadata(pid, tid, "thread_name", name=name)
            yield _metadata(pid, tid, "thread_sort_index", sort_index=tid)
        for begin in range(0, len(track), _CHUNK):
            yield from _slices(track, slice(begin, begin + _CHUNK), pid, tids, origin_ns)


def microseconds(time_ns: int) -> str:
    """Formats a time in nanoseconds as microseconds with three decimals."""
    sign, time_ns = ("-", -time_ns) if time_ns < 0 else ("", time_ns)
    return f"{sign}{time_ns // 1000}.{time_ns % 1000:03d}"


def _metadata(pid: int, tid: int, what: str, **args: Any) -> str:
    return json.dumps({"ph": "M", "pid": pid, "tid": tid, "name": what, "args": args})


def _slices(track: Track, rows: slice, pid: int, tids: list[int], origin_ns: int) -> Iterator[str]:
    columns = [_members(name, column[rows]) for name, column in track.facts.items()]
    facts = zip(*columns, strict=True) if columns else ((),) * len(track.label[rows])
    kind = json.dumps(track.name)
    for begin, end, lane, label, members in zip(
        (track.begin_ns[rows] - origin_ns).tolist(),
        (track.end_ns[rows] - origin_ns).tolist(),
        track.lane[rows].tolist(),
        track.label[rows],
        facts,
        strict=True,
    ):
        known = ",".join(filter(None, members))
        args = f',"args":{{{known}}}' if known else ""
        yield (
            f'{{"ph":"X","pid":{pid},"tid":{tids[lane]},"ts":{microseconds(begin)},'
            f'"dur":{microseconds(end - begin)},"name":{_quoted(label)},"cat":{kind}{args}}}'
        )
    if track.flows is not None:
        yield from _arrows(track, rows, pid, tids, origin_ns)


def _members(name: str, column: Column) -> list[str]:
    """Formats each value as ``"name":value``; an unknown value gives an empty string."""
    key = json.dumps(name) + ":"
    if isinstance(column, list):
        return ["" if value is None else key + _quoted(value) for value in column]
    values = column.tolist()
    if column.dtype.kind == "f":
        return ["" if math.isnan(value) else f"{key}{value:.3f}" for value in values]
    return ["" if value == -1 else f"{key}{value}" for value in values]


def _arrows(track: Track, rows: slice, pid: int, tids: list[int], origin_ns: int) -> Iterator[str]:
    """Yields the ends of arrows on one rank.

    An arrow leads from the rank that came last to a rank that waited. On the waiting rank, the
    arrow ends in an extra slice named "transfer", which lasts from the last rank's arrival until
    the collective's end. The arrow cannot end in the slice of the whole collective. That slice
    begins before the arrow, so Perfetto would reverse the arrow.
    """
    flows = track.flows
    assert flows is not None
    for row in range(rows.start, min(rows.stop, len(track))):
        where = f'"pid":{pid},"tid":{tids[int(track.lane[row])]}'
        time_us = microseconds(int(track.begin_ns[row]) - origin_ns)
        for number in flows.sent[flows.first[row] : flows.first[row + 1]].tolist():
            yield f'{{"ph":"s","id":{number},{where},"ts":{time_us},{_ARROW}}}'
        if flows.received[row] >= 0:
            transfer_begin_ns, number = int(flows.transfer_begin_ns[row]), int(flows.received[row])
            time_us = microseconds(transfer_begin_ns - origin_ns)
            dur = microseconds(int(track.end_ns[row]) - transfer_begin_ns)
            slice_of = f'"ts":{time_us},"dur":{dur},"name":"transfer","cat":"transfer"'
            yield f'{{"ph":"X",{where},{slice_of}}}'
            time_us = microseconds(transfer_begin_ns + 1 - origin_ns)
            yield f'{{"ph":"f","bp":"e","id":{number},{where},"ts":{time_us},{_ARROW}}}'


@functools.lru_cache(maxsize=4096)
def _quoted(text: str) -> str:
    return json.dumps(text)
