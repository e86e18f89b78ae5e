"""Converts a trace of device collectives to the timeline of the device's compute stream.

A host that drives a GPU runs ahead of the GPU: the host's times show when work was enqueued. If the
capture recorded device events on the streams, the records of the training thread get times of the
compute stream instead:

- a step or phase begins and ends when the stream reached its begin and its end
- a collective is issued when the stream was ready for the collective
- a wait is an interval in which the stream waited

Every analysis can read the resulting trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commprof.trace import columns, schema
from commprof.trace.columns import ints, of_kind, one_of
from commprof.trace.found_steps import step_marks
from commprof.trace.lookup import row_of
from commprof.trace.packed import in_parts
from commprof.trace.reader import Trace
from commprof.trace.schema import Kind, Records

Ints = npt.NDArray[np.int64]


def on_device_timeline(trace: Trace) -> Trace:
    """Returns the trace with times from its device events; the same trace if it has none.

    Collectives of CPU tensors, and records before the first event, keep the host's times. The
    result lacks:

    - waits and run delay (time without a core) of the host, which need not delay a stream
    - waits of streams other than the compute stream
    - steps and phases whose events were lost
    """
    if not has_device_times(trace):
        return trace
    records = trace.records
    stream = _computing_stream(records)
    issues = _issues(records)
    parts = [
        _other_kinds(records),
        issues,
        _buckets(records, issues),
        _boundaries(records),
        _phases(records),
        _waits(records, stream),
        _ends_by_wait(records),
        _finalizations(records, stream),
    ]
    moved = np.concatenate(parts)
    return replace(trace, records=moved.take(np.argsort(moved["timestamp_ns"], kind="stable")))


def has_device_times(trace: Trace) -> bool:
    """True if device events show when a stream waited, or was ready for a collective."""
    return any(len(of_kind(trace.records, kind)) for kind in (Kind.DEVICE_READY, Kind.DEVICE_WAIT))


def device_collectives(trace: Trace) -> int:
    """Returns the number of collectives that the rank issued on a device."""
    if device_collectives not in trace.tables:
        parts = in_parts(trace.records, Kind.ISSUE, "flags")
        trace.tables[device_collectives] = sum(
            # with a stride of 0, one stored value holds for all calls
            len(flags) * bool(flags[0] & schema.FLAG_DEVICE_ASYNC)
            if len(flags) and flags.strides == (0,)
            else int((flags & schema.FLAG_DEVICE_ASYNC != 0).sum())
            for (flags,) in parts
        )
    count: int = trace.tables[device_collectives]
    return count


def timed_collectives(trace: Trace) -> int:
    """Returns the number of device collectives with a completion or wait timed by an event."""
    records = trace.records
    flags = in_parts(records, Kind.END, "flags")
    by_event = any((part & schema.FLAG_DEVICE_TIME != 0).any() for (part,) in flags)
    if not by_event and not len(of_kind(records, Kind.DEVICE_WAIT)):
        return 0
    ends = in_parts(records, Kind.END, "op_id", "flags")
    ended = [op_id[flags & schema.FLAG_DEVICE_TIME != 0] for op_id, flags in ends]
    timed = np.concatenate((*ended, of_kind(records, Kind.DEVICE_WAIT)["op_id"]))
    if not len(timed):
        return 0
    # the ring of records may have been full when an operation was issued
    issues = in_parts(records, Kind.ISSUE, "op_id", "flags")
    on_device = [op_id[flags & schema.FLAG_DEVICE_ASYNC != 0] for op_id, flags in issues]
    op_id = ints(np.concatenate((*on_device, timed[:0])))
    return int((row_of(op_id, ints(timed)) >= 0).sum())


def clock_error_ns(trace: Trace) -> float:
    """Returns the largest error bound, in ns, of device times on the host's clock.

    Anchors are comparisons of the two clocks. An anchor records the error bound of the comparison,
    and the largest bound of the device times since the previous anchor. If no anchor has the second
    bound, as in older traces, the result may be far too large. Without anchors it is NaN.
    """
    anchors = of_kind(trace.records, Kind.DEVICE_CLOCK)
    if len(anchors) == 0:
        return float("nan")
    used = anchors["bytes_out"].max()
    return float(max(used, anchors["bytes_in"].min()) if used else anchors["bytes_in"].max())


_REWRITTEN = (
    Kind.ISSUE,
    Kind.STEP,
    Kind.PHASE,
    Kind.WAIT,
    Kind.FINALIZE_BEGIN,
    Kind.FINALIZE_END,
    Kind.BUCKET,
    Kind.DEVICE_READY,
    Kind.DEVICE_WAIT,
    Kind.DEVICE_FINALIZE,
    Kind.DEVICE_PHASE,
    Kind.DEVICE_STEP,
)


def _other_kinds(records: Records) -> Records:
    return records.compress(~one_of(records, *_REWRITTEN, Kind.RUN_DELAY))


class _Stream(NamedTuple):
    """A stream of a device; stream ids are unique on their device only."""

    device: int
    stream: int

    def of(self, records: Records) -> Records:
        on_it = (records["seq"] == self.device) & (records["bytes_out"] == self.stream)
        return records.compress(on_it)


def _computing_stream(records: Records) -> _Stream:
    """Returns the stream with the most phases; without phases, the stream with the most waits."""
    for kind in (Kind.DEVICE_PHASE, Kind.DEVICE_WAIT):
        stretches = of_kind(records, kind)
        streams, times = np.unique(stretches[["seq", "bytes_out"]], return_counts=True)
        if len(streams):
            return _Stream(*streams[np.argmax(times)].tolist())
    return _Stream(0, 0)


def _training_thread(records: Records) -> int:
    """Returns the thread that ends the steps; it need not be the thread that began capture."""
    marks = step_marks(records)
    threads = marks.thread[marks.ends] if marks.ends.any() else marks.thread
    return int(threads[0]) if len(threads) else 0


def _issues(records: Records) -> Records:
    """Returns the issue records, each with the time when its stream was ready for the operation.

    An operation in the caller's own stream is recorded as a wait, and counts as issued when this
    wait begins. Operations that autograd's thread issues in backward are attributed to the training
    thread, because both threads feed one stream.
    """
    issues = of_kind(records, Kind.ISSUE).copy()
    ready = of_kind(records, Kind.DEVICE_READY)
    waits = of_kind(records, Kind.DEVICE_WAIT)
    time_of: dict[tuple[int, int], int] = {}
    for op_id, at, time_ns in _numbers(waits, "op_id", "bytes_in", "timestamp_ns"):
        time_of[op_id, at] = time_ns
    ready_at = {op_id: time_ns for op_id, time_ns in _numbers(ready, "op_id", "timestamp_ns")}
    issues["timestamp_ns"] = [
        ready_at.get(op_id, time_of.get((op_id, host_ns), host_ns))
        for op_id, host_ns in _numbers(issues, "op_id", "timestamp_ns")
    ]
    on_device = (issues["flags"] & schema.FLAG_DEVICE_ASYNC) != 0
    issues["thread"][on_device & (issues["value"] > 0)] = _training_thread(records)
    return issues


def _buckets(records: Records, issued: Records) -> Records:
    """Returns DDP's bucket records, ready when the stream reached their first collectives.

    A bucket's collectives are those that its thread issued while it launched the bucket. Buckets
    without a device collective are unchanged. ``issued`` is the result of :func:`_issues`.
    """
    found = of_kind(records, Kind.BUCKET).copy()
    host = of_kind(records, Kind.ISSUE)
    on_device = (host["flags"] & schema.FLAG_DEVICE_ASYNC) != 0
    for thread in np.unique(found["thread"]).tolist():
        rows = np.flatnonzero(found["thread"] == thread)
        calls = np.flatnonzero(on_device & (host["thread"] == thread))
        first = np.searchsorted(host["timestamp_ns"][calls], found["timestamp_ns"][rows])
        rows, calls = rows[first < len(calls)], calls[first[first < len(calls)]]
        inside = host["timestamp_ns"][calls] <= found["value"][rows]
        rows, calls = rows[inside], calls[inside]
        launching_ns = found["value"][rows] - found["timestamp_ns"][rows]
        found["timestamp_ns"][rows] = issued["timestamp_ns"][calls]
        found["value"][rows] = issued["timestamp_ns"][calls] + launching_ns
        found["thread"][rows] = issued["thread"][calls]
    return found


def _boundaries(records: Records) -> Records:
    """Returns the step boundaries with the times of their device events.

    A boundary that ends a step is left out if its event was lost. A boundary that only begins a
    step then keeps the host's time, because it may lie before the first event.
    """
    steps = of_kind(records, Kind.STEP).copy()
    marks = of_kind(records, Kind.DEVICE_STEP)
    row = _same_moment(marks, steps)
    steps["timestamp_ns"][row >= 0] = marks["timestamp_ns"][row[row >= 0]]
    return steps[(row >= 0) | (steps["aux"] == 0)]


def _phases(records: Records) -> Records:
    phases = of_kind(records, Kind.PHASE).copy()
    marks = of_kind(records, Kind.DEVICE_PHASE)
    row = _same_moment(marks, phases)
    known = row >= 0
    begun = phases["timestamp_ns"].copy()
    for name in ("timestamp_ns", "value"):
        phases[name][known] = marks[name][row[known]]
    first = begun[known].min() if known.any() else np.iinfo(np.uint64).max
    return phases[known | (begun < first)]


def _waits(records: Records, stream: _Stream) -> Records:
    found = stream.of(of_kind(records, Kind.DEVICE_WAIT)).copy()
    found["kind"] = Kind.WAIT
    found["thread"] = _training_thread(records)
    return found


def _ends_by_wait(records: Records) -> Records:
    """Returns the ends of host operations whose end is known only from their first wait.

    Such operations are gloo's messages and reduce-scatters. A wait that blocked becomes an end. A
    wait that did not block stays a wait of length 0, because the operation may have been complete
    before.
    """
    issues = of_kind(records, Kind.ISSUE)
    on_host = issues["op_id"][(issues["flags"] & schema.FLAG_DEVICE_ASYNC) == 0]
    waits = of_kind(records, Kind.WAIT)
    shown = (
        ((waits["flags"] & schema.FLAG_IN_ISSUE) == 0)
        & np.isin(waits["op_id"], on_host)
        & ~np.isin(waits["op_id"], of_kind(records, Kind.END)["op_id"])
    )
    waits = waits[shown]
    ends = waits[np.unique(waits["op_id"], return_index=True)[1]].copy()
    blocked = columns.blocked(ends)
    ends["timestamp_ns"] = ends["value"]
    ends["kind"][blocked] = Kind.END
    ends["value"][blocked] = 0
    return ends


def _finalizations(records: Records, stream: _Stream) -> Records:
    """Makes records of DDP's finalisations on the device.

    In a finalisation, at the end of a backward pass, DDP waits for all buckets. In the record of
    the end, the field for CPU time holds the time in ns in which the stream copied buckets.
    """
    found = stream.of(of_kind(records, Kind.DEVICE_FINALIZE))
    found = found[columns.finalises(found["op_id"], found["flags"])]
    issues = of_kind(records, Kind.ISSUE)
    issues = issues[np.argsort(issues["value"], kind="stable")]
    number = issues["value"].astype(np.int64)
    wanted = found["op_id"].astype(np.int64) + 1
    first, last = (np.searchsorted(number, wanted, side) for side in ("left", "right"))
    end_of = {
        op_id: end_ns
        for op_id, end_ns in _numbers(of_kind(records, Kind.END), "op_id", "timestamp_ns")
    }
    rows = np.zeros(2 * len(found), dtype=schema.RECORD_DTYPE)
    begins, ends = rows[::2], rows[1::2]
    begins["kind"], ends["kind"] = Kind.FINALIZE_BEGIN, Kind.FINALIZE_END
    rows["thread"] = _training_thread(records)
    begins["op_id"] = ends["op_id"] = found["op_id"]
    begins["timestamp_ns"], ends["timestamp_ns"] = found["timestamp_ns"], found["value"]
    for i, (begin_ns, end_ns) in enumerate(_numbers(found, "timestamp_ns", "value")):
        buckets = issues[first[i] : last[i]]
        known = [
            (end_of[op_id] - begin_ns, size)
            for op_id, size in _numbers(buckets, "op_id", "bytes_in")
            if op_id in end_of
        ]
        ends["value"][i] = round(copying_ns(end_ns - begin_ns, known))
    return rows


def copying_ns(window_ns: int, buckets: list[tuple[int, int]]) -> float:
    """Returns the part of a finalisation, in ns, in which the stream copied and did not wait.

    DDP waits for a bucket, copies it, and goes on to the next bucket. If copying takes c ns per
    byte and bucket i is complete at end_i, DDP is done at the largest of ``c * (all bytes)`` and,
    for each i, ``end_i + c * (bytes of bucket i and all later buckets)``. The result is ``c * (all
    bytes)``, with c chosen so that DDP is done at ``window_ns``.

    Args:
        window_ns: length of the finalisation.
        buckets: per bucket, in order: its completion in ns since the window began, and its bytes.
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
    return zip(*(records[name].tolist() for name in names), strict=True)


def _same_moment(marks: Records, host: Records) -> Ints:
    """Returns, per host record, the row of its device record in ``marks``; -1 if it has none.

    A device record has the thread of its host record, and the host record's time in ``bytes_in``.
    """
    row_of = {key: row for row, key in enumerate(_numbers(marks, "thread", "bytes_in"))}
    wanted = _numbers(host, "thread", "timestamp_ns")
    return np.array([row_of.get(key, -1) for key in wanted], dtype=np.int64)
