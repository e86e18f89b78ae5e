"""Moves a trace of device collectives to the timeline of the device's stream.

A host that drives a GPU runs ahead of it: its own times say when work was handed over. Where
capture put events on the streams, everything of the training thread is retold as the stream that
computes saw it: steps and phases begin and end when the stream came there, a collective is issued
when the stream was ready for it, a wait is a stretch in which the stream stood still. The result
is a trace like any other, and all analyses read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commprof.trace import schema
from commprof.trace.reader import Trace
from commprof.trace.schema import Kind, Records

Ints = npt.NDArray[np.int64]


def on_device_timeline(trace: Trace) -> Trace:
    """Returns the trace timed by its device's events; the same trace where it has none.

    Kept as the host saw it: collectives of CPU tensors, and what came before the first event.
    Left out: waits of the host, which hold up no stream; waits of other streams than the one
    that computes; and steps and phases whose events were lost.
    """
    records = trace.records
    timed = np.isin(records["kind"], (Kind.DEVICE_READY, Kind.DEVICE_WAIT))
    if not timed.any():
        return trace
    stream = _computing_stream(records)
    parts = [
        _other_kinds(records),
        _issues(records),
        _boundaries(records),
        _phases(records),
        _waits(records, stream),
        _finalizations(records, stream),
    ]
    moved = np.concatenate(parts)
    return replace(trace, records=moved[np.argsort(moved["timestamp_ns"], kind="stable")])


def timed_collectives(trace: Trace) -> int:
    """Number of device collectives of which a device event told the completion or the waiting."""
    records = trace.records
    ends = (records["kind"] == Kind.END) & (records["flags"] & schema.FLAG_DEVICE_TIME != 0)
    told = ends | (records["kind"] == Kind.DEVICE_WAIT)
    return len(np.unique(records["op_id"][told]))


def clock_error_ns(trace: Trace) -> float:
    """Worst bound of an anchor on device times against the host's clock; NaN without any."""
    anchors = _of_kind(trace.records, Kind.DEVICE_CLOCK)
    return float(anchors["bytes_in"].max()) if len(anchors) else float("nan")


_REWRITTEN = (
    Kind.ISSUE,
    Kind.STEP,
    Kind.PHASE,
    Kind.WAIT,
    Kind.FINALIZE_BEGIN,
    Kind.FINALIZE_END,
    Kind.DEVICE_READY,
    Kind.DEVICE_WAIT,
    Kind.DEVICE_FINALIZE,
    Kind.DEVICE_PHASE,
    Kind.DEVICE_STEP,
)


def _other_kinds(records: Records) -> Records:
    return records[~np.isin(records["kind"], _REWRITTEN)]


def _of_kind(records: Records, kind: Kind) -> Records:
    return records[records["kind"] == kind]


class _Stream(NamedTuple):
    """One of a device's streams: ids begin anew on each device."""

    device: int
    stream: int

    def of(self, records: Records) -> Records:
        """Stretches that lie on this stream."""
        on_it = (records["seq"] == self.device) & (records["bytes_out"] == self.stream)
        return records[on_it]


def _computing_stream(records: Records) -> _Stream:
    """The stream that phases lie on; without phases the one that waits most often."""
    for kind in (Kind.DEVICE_PHASE, Kind.DEVICE_WAIT):
        stretches = _of_kind(records, kind)
        streams, times = np.unique(stretches[["seq", "bytes_out"]], return_counts=True)
        if len(streams):
            return _Stream(*streams[np.argmax(times)].tolist())
    return _Stream(0, 0)


def _training_thread(records: Records) -> int:
    steps = _of_kind(records, Kind.STEP)
    return int(steps["thread"][0]) if len(steps) else 0


def _issues(records: Records) -> Records:
    """Issued when the stream came to it: at the mark before the call.

    An operation that runs in the caller's own stream has that mark at the begin of the wait that
    is the operation itself.
    """
    issues = _of_kind(records, Kind.ISSUE).copy()
    ready = _of_kind(records, Kind.DEVICE_READY)
    waits = _of_kind(records, Kind.DEVICE_WAIT)
    time_of: dict[tuple[int, int], int] = {}
    for op_id, at, time_ns in _numbers(waits, "op_id", "bytes_in", "timestamp_ns"):
        time_of[op_id, at] = time_ns
    ready_at = {op_id: time_ns for op_id, time_ns in _numbers(ready, "op_id", "timestamp_ns")}
    issues["timestamp_ns"] = [
        ready_at.get(op_id, time_of.get((op_id, host_ns), host_ns))
        for op_id, host_ns in _numbers(issues, "op_id", "timestamp_ns")
    ]
    return issues


def _boundaries(records: Records) -> Records:
    """Step boundaries. One that only begins a step may lie before the first event."""
    steps = _of_kind(records, Kind.STEP).copy()
    marks = _of_kind(records, Kind.DEVICE_STEP)
    row = _same_moment(marks, steps)
    steps["timestamp_ns"][row >= 0] = marks["timestamp_ns"][row[row >= 0]]
    return steps[(row >= 0) | (steps["aux"] == 0)]


def _phases(records: Records) -> Records:
    phases = _of_kind(records, Kind.PHASE).copy()
    marks = _of_kind(records, Kind.DEVICE_PHASE)
    row = _same_moment(marks, phases)
    known = row >= 0
    begun = phases["timestamp_ns"].copy()
    for name in ("timestamp_ns", "value"):
        phases[name][known] = marks[name][row[known]]
    first = begun[known].min() if known.any() else np.iinfo(np.uint64).max
    return phases[known | (begun < first)]


def _waits(records: Records, stream: _Stream) -> Records:
    """Waits of the computing stream, whichever thread enqueued them."""
    found = stream.of(_of_kind(records, Kind.DEVICE_WAIT)).copy()
    found["kind"] = Kind.WAIT
    found["thread"] = _training_thread(records)
    return found


def _finalizations(records: Records, stream: _Stream) -> Records:
    """DDP's finalisations, with the time that the stream copied in the place of CPU time."""
    found = stream.of(_of_kind(records, Kind.DEVICE_FINALIZE))
    issues = _of_kind(records, Kind.ISSUE)
    end_of = {
        op_id: end_ns
        for op_id, end_ns in _numbers(_of_kind(records, Kind.END), "op_id", "timestamp_ns")
    }
    rows = np.zeros(2 * len(found), dtype=schema.RECORD_DTYPE)
    begins, ends = rows[::2], rows[1::2]
    begins["kind"], ends["kind"] = Kind.FINALIZE_BEGIN, Kind.FINALIZE_END
    rows["thread"] = _training_thread(records)
    begins["op_id"] = ends["op_id"] = found["op_id"]
    begins["timestamp_ns"], ends["timestamp_ns"] = found["timestamp_ns"], found["value"]
    for i, (task, begin_ns, end_ns) in enumerate(_numbers(found, "op_id", "timestamp_ns", "value")):
        buckets = issues[issues["value"] == task + 1]
        known = [
            (end_of[op_id] - begin_ns, size)
            for op_id, size in _numbers(buckets, "op_id", "bytes_in")
            if op_id in end_of
        ]
        ends["value"][i] = round(copying_ns(end_ns - begin_ns, known))
    return rows


def copying_ns(window_ns: int, buckets: list[tuple[int, int]]) -> float:
    """Time of a finalisation in which the stream copied buckets instead of waiting.

    DDP's loop waits for a bucket, copies it, and goes on to the next. At c ns a byte it is over at
    the largest of ``end_i + c * (bytes of i and after it)``, or of ``c * (all bytes)``; c is such
    that this is the window's end.

    Args:
        window_ns: length of the finalisation.
        buckets: in order, each one's completion since the begin of the window, and its bytes.
    """
    left = float(sum(size for _, size in buckets))
    if left == 0:
        return 0.0
    limits = [window_ns / left]
    whole = left
    for end_ns, size in buckets:
        if left > 0:
            limits.append(max(0.0, (window_ns - end_ns) / left))
        left -= size
    return whole * min(limits)


def _numbers(records: Records, *names: str) -> Iterator[tuple[int, ...]]:
    """The named fields of each record, as numbers of Python's."""
    return zip(*(records[name].tolist() for name in names), strict=True)


def _same_moment(marks: Records, host: Records) -> Ints:
    """Row of the mark that was made with each record of the host; -1 where there is none."""
    row_of = {key: row for row, key in enumerate(_numbers(marks, "thread", "bytes_in"))}
    wanted = _numbers(host, "thread", "timestamp_ns")
    return np.array([row_of.get(key, -1) for key in wanted], dtype=np.int64)
