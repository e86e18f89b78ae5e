"""DDP's backward passes in a trace of torch.profiler: when buckets were ready, and waited for.

torch.profiler records neither. A bucket is ready when the kernels are done that the host launched
before its all-reduce; of gloo, when its operator begins. DDP waits from the pass's last kernel,
or operator, until its last bucket is done: what copies buckets back is in the step's next part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from commprof.recordings.profiler_calls import Call, launches
from commprof.recordings.profiler_events import Intervals, ProfilerEvents
from commprof.recordings.profiler_steps import FoundSteps, bucket_rows, find_phases
from commprof.trace import schema
from commprof.trace.reader import Trace
from commprof.trace.schema import Kind, Phase, Records

Ints = npt.NDArray[np.int64]


def pass_records(
    events: ProfilerEvents,
    calls: Sequence[Call],
    steps: FoundSteps,
    work: Intervals,
    device: int | None,
    thread: int,
) -> Records | None:
    """The passes as capture records them, without processor times; None without DDP's buckets."""
    rows, step = bucket_rows(events, calls, steps)
    if len(rows) == 0:
        return None
    buckets = [calls[row] for row in rows.tolist()]
    ready_ns = _ready_ns(events, buckets, work, device)
    end_ns = np.array([call.end_ns for call in buckets], dtype=np.int64)
    told = []
    for row, call, ready in zip(rows.tolist(), buckets, ready_ns.tolist(), strict=True):
        begun = _record(Kind.BUCKET, ready, row + 1)
        begun["bytes_in"], begun["value"] = call.bytes_in, call.launch_ns
        told += [begun, _record(Kind.BUCKET_END, call.end_ns, row + 1)]
    phase, when = find_phases(events, work, device)
    computed_ns = when.end_ns[phase == Phase.BACKWARD]
    last = np.searchsorted(computed_ns, steps.end_ns, side="right") - 1
    for each in np.unique(step).tolist():
        begin = int(computed_ns[last[each]]) if last[each] >= 0 else 0
        if begin > steps.begin_ns[each]:
            end = max(begin, int(end_ns[step == each].max()))
            told += [
                _record(Kind.FINALIZE_BEGIN, begin, each),
                _record(Kind.FINALIZE_END, end, each),
            ]
    found = np.concatenate(told)
    found["thread"] = thread
    return found


def with_passes(trace: Trace) -> Trace:
    """The trace with the passes that it implies, as if capture had recorded them."""
    if trace.passes is None:
        return trace
    records, passes = trace.records.copy(), trace.passes
    buckets = passes[passes["kind"] == Kind.BUCKET]
    windows = passes[passes["kind"] == Kind.FINALIZE_END]
    mine = (records["kind"] == Kind.ISSUE) & np.isin(records["op_id"], buckets["op_id"])
    at = np.searchsorted(windows["timestamp_ns"], records["timestamp_ns"][mine])
    task = windows["op_id"][np.minimum(at, len(windows) - 1)] if len(windows) else 0
    records["value"][mine] = task + 1
    whole = np.concatenate([records, passes])
    order = np.argsort(whole["timestamp_ns"], kind="stable")
    return replace(trace, records=whole[order], passes=None)


def _record(kind: Kind, time_ns: int, op_id: int) -> Records:
    row = np.zeros(1, dtype=schema.RECORD_DTYPE)
    row["kind"], row["timestamp_ns"], row["op_id"] = kind, time_ns, op_id
    return row


def _ready_ns(
    events: ProfilerEvents, buckets: Sequence[Call], work: Intervals, device: int | None
) -> Ints:
    """When each bucket could be sent; not later than its all-reduce began."""
    begin_ns = np.array([call.begin_ns for call in buckets], dtype=np.int64)
    if device is None:
        return begin_ns
    launched_ns, _ = launches(events, np.frombuffer(work.tag, np.int64))
    order = np.argsort(launched_ns, kind="stable")
    done_ns = np.maximum.accumulate(np.frombuffer(work.end_ns, np.int64)[order])
    at = np.array([call.launch_ns for call in buckets], dtype=np.int64)
    before = np.searchsorted(launched_ns[order], at, side="left") - 1
    known = (before >= 0) & (at >= 0)
    done = done_ns[np.maximum(before, 0)] if len(done_ns) else begin_ns
    return np.minimum(np.where(known, done, begin_ns), begin_ns)
