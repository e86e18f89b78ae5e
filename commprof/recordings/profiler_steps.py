"""Finds the steps, the phases and DDP's backward passes in a torch.profiler trace.

torch.profiler does not record when a gradient bucket is ready, or when DDP waits. A bucket counts
as ready when the kernels launched before its all-reduce are complete. With gloo, it counts as ready
when the all-reduce begins. DDP counts as waiting after the last kernel or operator of a backward
pass, until the pass's last bucket is complete.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median_high
from typing import Final

import numpy as np
import numpy.typing as npt

from commprof.recordings.profiler_call_columns import CallColumns
from commprof.recordings.profiler_calls import Call, launches
from commprof.recordings.profiler_events import Intervals, ProfilerEvents
from commprof.recordings.profiler_named import Event
from commprof.text import counted
from commprof.trace import schema
from commprof.trace.lookup import distinct
from commprof.trace.reader import Trace
from commprof.trace.schema import Kind, Phase, Records
from commprof.trace.stretches import Stretches, stretches

Ints = npt.NDArray[np.int64]

_STEP = re.compile(r"ProfilerStep#(\d{1,9})$")
_FORWARD = re.compile(
    r"(?:DistributedDataParallel|FullyShardedDataParallel)\.forward|#* ?forward|PP:\d+F", re.I
)
_UPDATE: Final = "Optimizer.step#"
_OPTIMIZER = re.compile(r"Optimizer\.step#|#* ?optimizer", re.I)
_BACKWARD = re.compile(r"#* ?backward|PP:\d+[BIW]\d|FSDP::(?:pre_|post_|root_post_)?backward", re.I)
_FSDP_BEGINS, _FSDP_ENDS = ("FSDP::root_pre_forward", "FSDP::pre_forward"), "FSDP::post_forward"
_DATA = re.compile(r"enumerate\(DataLoader\)")
#: If no step is marked, repeating sequences of up to this many calls are searched for.
_LONGEST_PERIOD: Final = 5000
#: Smallest share of the calls that must equal the call one period earlier.
_REPEATED: Final = 0.95


def _is_step(name: str) -> bool:
    return _STEP.match(name) is not None


def _is_update(name: str) -> bool:
    return name.startswith(_UPDATE)


def _is_forward(name: str) -> bool:
    return _FORWARD.match(name) is not None


def _is_forward_of_ddp(name: str) -> bool:
    return name.startswith("DistributedDataParallel.forward")


def _is_of_fsdp(name: str) -> bool:
    return name.startswith("FSDP::")


def _is_backward(name: str) -> bool:
    return _BACKWARD.match(name) is not None


def _is_optimizer(name: str) -> bool:
    return _OPTIMIZER.match(name) is not None


def _is_data(name: str) -> bool:
    return _DATA.match(name) is not None


@dataclass(frozen=True)
class FoundSteps:
    """Steps of a recording, in order."""

    number: Ints
    begin_ns: Ints
    end_ns: Ints
    #: A sentence on how the steps were found; empty if the script marked the steps.
    said: str
    #: True if each step lasts from one update of an optimizer to the next update.
    by_updates: bool = False

    @property
    def repeats(self) -> bool:
        """True if the steps may not be training steps.

        The steps are then sequences of repeating calls, or the whole recording counts as one step.
        """
        return bool(self.said) and not self.by_updates


def find_steps(events: ProfilerEvents, calls: CallColumns, busy: Stretches) -> FoundSteps:
    """Finds the steps of a trace.

    Steps follow from marks (ProfilerStep), from updates of an optimizer, or from repeating calls.
    Without these, the whole recording counts as one step.

    Args:
        events: the trace's events.
        calls: the trace's collectives, in order.
        busy: times at which the device, or the host, was busy.
    """
    marked = _of_one_thread(events.ranges.named(_is_step))
    if marked:
        number = [int(e.name.rpartition("#")[2]) for e in marked]
        return _steps(number, [e.begin_ns for e in marked], [e.end_ns for e in marked], "")
    updates = _updates(events)
    if len(updates) > 2:
        said = "steps are from one optimizer step to the next, because no ProfilerStep is marked"
        return replace(_between(updates, said), by_updates=True)
    period = _period([(call.op, call.group, call.bytes_in) for call in calls])
    if period:
        at = [call.begin_ns for call in calls[::period]]
        repeated = counted(period, "collective")
        said = f"no step is marked, but a sequence of {repeated} repeats: it counts as one step"
        return _between(at, said)
    begin, end = (int(busy.begin_ns[0]), int(busy.end_ns.max())) if len(busy) else (0, 1)
    said = "no step is marked and no collectives repeat: the whole recording counts as one step"
    return _steps([0], [begin], [max(end, begin + 1)], said)


def _of_one_thread(marked: Sequence[Event]) -> list[Event]:
    threads = Counter(event.thread for event in marked)
    most = max(threads, key=lambda thread: threads[thread], default=0)
    found: list[Event] = []
    for event in sorted((e for e in marked if e.thread == most), key=lambda e: e.begin_ns):
        again = found and found[-1].name == event.name and event.begin_ns < found[-1].end_ns
        if not again:
            found.append(event)
    return found


def _updates(events: ProfilerEvents) -> list[int]:
    """Returns the ends of the updates of one optimizer. Each of these updates ends a step.

    An update inside another update does not count. An update inside a backward pass does not count
    either: the script then has an optimizer per parameter.

    Optimizers of different classes are distinguished by the name of the class. Optimizers of one
    class are numbered by their order after a backward pass. A CUDA graph hides backward passes, so
    the numbers also start again after the usual number of updates between two passes. The optimizer
    with most updates is chosen.
    """
    ranges = events.ranges.named(_is_update)
    ranges.sort(key=lambda e: (e.begin_ns, -e.end_ns))
    begin, end, thread = (
        np.array([getattr(e, name) for e in ranges], np.int64)
        for name in ("begin_ns", "end_ns", "thread")
    )
    # The ends are checked, because an update may contain a backward pass.
    inside = _in_backward(events, end, thread)
    backward_ns = np.sort(np.frombuffer(events.backward.begin_ns, np.int64))
    passes = np.searchsorted(backward_ns, begin).tolist()
    until: dict[int, int] = {}
    turns: Counter[tuple[str, int]] = Counter()
    counted: list[tuple[Event, int]] = []
    for event, since, in_pass in zip(ranges, passes, inside.tolist(), strict=True):
        if in_pass or event.begin_ns < until.get(event.thread, 0):
            continue
        until[event.thread] = event.end_ns
        counted.append((event, turns[event.name, since] if len(backward_ns) else 0))
        turns[event.name, since] += 1
    by_name: dict[str, list[int]] = {}
    for (name, _), count in turns.items():
        by_name.setdefault(name, []).append(count)
    usual = {name: median_high(counts) for name, counts in by_name.items()}
    ends: dict[tuple[str, int], set[int]] = {}
    for event, turn in counted:
        ends.setdefault((event.name, turn % usual[event.name]), set()).add(event.end_ns)
    most = max(map(len, ends.values()), default=0)
    return next((sorted(ends_ns) for ends_ns in ends.values() if len(ends_ns) == most), [])


def _steps(number: list[int], begin: list[int], end: list[int], said: str) -> FoundSteps:
    begin_ns = np.maximum.accumulate(np.array(begin, dtype=np.int64))
    end_ns = np.array(end, dtype=np.int64)
    # Times are rounded, so a step may seem to end after the next step has begun.
    end_ns[:-1] = np.minimum(end_ns[:-1], begin_ns[1:])
    kept = end_ns > begin_ns
    return FoundSteps(_rising(np.array(number, np.int64)[kept]), begin_ns[kept], end_ns[kept], said)


def _rising(number: Ints) -> Ints:
    back = np.concatenate(([False], np.diff(number) <= 0))
    shift = np.where(back, np.roll(number, 1) + 1 - number, 0)
    return number + np.cumsum(shift)


def _between(moments: Sequence[int], said: str) -> FoundSteps:
    return _steps(list(range(len(moments) - 1)), list(moments[:-1]), list(moments[1:]), said)


def _period(calls: Sequence[tuple[str, str, int]]) -> int:
    """Returns the number of calls after which the calls repeat; 0 if the calls do not repeat.

    There must be at least three periods.
    """
    _, codes = np.unique([repr(call) for call in calls], return_inverse=True)
    codes = codes.reshape(-1)
    for period in range(1, min(_LONGEST_PERIOD, len(codes) // 3) + 1):
        same = codes[period:] == codes[:-period]
        if same.mean() >= _REPEATED and len(np.unique(codes)) == len(np.unique(codes[:period])):
            return period
    return 0


def bucket_rows(events: ProfilerEvents, calls: CallColumns, steps: FoundSteps) -> tuple[Ints, Ints]:
    """Returns the rows of the calls that are DDP's gradient buckets, and the step of each row.

    A bucket is an all-reduce that was launched in a step, during an operator of a backward pass. If
    the trace has no forward pass of DDP, there are no buckets.
    """
    none = np.zeros(0, dtype=np.int64)
    if not events.ranges.any_named(_is_forward_of_ddp):
        return none, none
    rows = np.flatnonzero(calls.of_kind(_is_all_reduce, np.bool_))
    at, thread = calls.launch_ns[rows], calls.launch_thread[rows]
    step = np.searchsorted(steps.begin_ns, at, side="right") - 1
    chosen = _in_backward(events, at, thread)
    chosen &= step >= 0
    chosen[chosen] = at[chosen] < steps.end_ns[step[chosen]]
    return rows[chosen], step[chosen]


def _in_backward(events: ProfilerEvents, at_ns: Ints, thread: Ints) -> npt.NDArray[np.bool_]:
    tag = np.frombuffer(events.backward.tag, np.int64)
    begin, end = (
        np.frombuffer(getattr(events.backward, name), np.int64) for name in ("begin_ns", "end_ns")
    )
    chosen = np.zeros(len(at_ns), dtype=bool)
    for each in distinct(tag).tolist():
        inside = stretches(begin[tag == each], end[tag == each])
        of = np.searchsorted(inside.begin_ns, at_ns, side="right") - 1
        within = (thread == each) & (of >= 0)
        within[within] = at_ns[within] <= inside.end_ns[of[within]]
        chosen |= within
    return chosen


def _is_all_reduce(kind: Call) -> bool:
    return kind.op.startswith("all_reduce")


def _elements(kind: Call) -> int:
    return kind.elements


def find_buckets(events: ProfilerEvents, calls: CallColumns, steps: FoundSteps) -> str:
    """Returns a sentence on the DDP buckets of a step.

    The sentence is empty if there are no buckets, if their numbers of elements are not known, or if
    the buckets differ between steps.
    """
    rows, step = bucket_rows(events, calls, steps)
    if len(rows) == 0:
        return ""
    elements = calls.of_kind(_elements)[rows]
    counts = np.bincount(step, minlength=len(steps.number))
    sums = np.bincount(step, weights=elements, minlength=len(steps.number))
    if len(np.unique(counts)) > 1 or len(np.unique(sums)) > 1 or not sums[0]:
        return ""
    buckets = counted(int(counts[0]), "gradient bucket")
    return f"DDP all-reduces {buckets} per step, {int(sums[0]):,} elements in all"


def find_phases(
    events: ProfilerEvents, work: Intervals, device: int | None
) -> tuple[Ints, Stretches]:
    """Returns the intervals of the phases: a phase per interval, and the times.

    Successive kernels or operators of one phase form one interval. A kernel belongs to the phase in
    which the host launched the kernel.

    Args:
        events: the trace's events.
        work: kernels of a device, or operators of one thread of the host.
        device: the kernels' device; None for the host.
    """
    begin, end = np.frombuffer(work.begin_ns, np.int64), np.frombuffer(work.end_ns, np.int64)
    tag = np.frombuffer(work.tag, np.int64)
    at, thread = (begin, tag) if device is None else launches(events, tag)
    order = np.argsort(begin, kind="stable")
    phase = _phase_of(events, at, thread)[order]
    begin, end = begin[order], np.maximum.accumulate(end[order]) if len(order) else end
    if len(begin) == 0:
        return phase, Stretches(begin, end)
    first = np.flatnonzero(np.concatenate(([True], phase[1:] != phase[:-1])))
    last = np.concatenate((first[1:] - 1, [len(phase) - 1]))
    starts = begin[first]
    stops = np.minimum(end[last], np.concatenate((starts[1:], [np.iinfo(np.int64).max])))
    kept = (phase[first] != Phase.OTHER) & (stops > starts)
    return phase[first][kept], Stretches(starts[kept], stops[kept])


def phases_of_launches(events: ProfilerEvents, calls: CallColumns) -> Ints:
    """Returns the code of the phase in which the host launched each call."""
    return _phase_of(events, calls.launch_ns, calls.launch_thread)


def _phase_of(events: ProfilerEvents, at_ns: Ints, thread: Ints) -> Ints:
    phase = np.full(len(at_ns), int(Phase.OTHER), dtype=np.int64)
    backward = events.backward
    tag, begin = np.frombuffer(backward.tag, np.int64), np.frombuffer(backward.begin_ns, np.int64)
    end = np.frombuffer(backward.end_ns, np.int64)
    for each in distinct(tag).tolist():
        _set(
            phase,
            Phase.BACKWARD,
            at_ns,
            thread,
            each,
            stretches(begin[tag == each], end[tag == each]),
        )
    for each, inside in _forward_of_fsdp(events).items():
        _set(phase, Phase.FORWARD, at_ns, thread, each, inside, only=Phase.OTHER)
    for code, is_of_phase in (
        *((Phase.BACKWARD, _is_backward), (Phase.FORWARD, _is_forward)),
        *((Phase.OPTIMIZER, _is_optimizer), (Phase.DATA, _is_data)),
    ):
        rows = events.ranges.rows_named(is_of_phase)
        if len(rows):
            ranges = events.ranges.table.rows(rows)
            for each in distinct(ranges.thread).tolist():
                mine = ranges.thread == each
                inside = stretches(ranges.begin_ns[mine], ranges.end_ns[mine])
                _set(phase, code, at_ns, thread, each, inside)
    return phase


def _forward_of_fsdp(events: ProfilerEvents) -> dict[int, Stretches]:
    marks = events.ranges.named(_is_of_fsdp)
    if not marks:
        return {}
    passes: dict[int, list[list[int]]] = {}
    open_in: set[int] = set()
    for event in sorted(marks, key=lambda e: e.begin_ns):
        thread, of_thread = event.thread, passes.setdefault(event.thread, [])
        if _is_backward(event.name):
            open_in.clear()
        elif event.name.startswith(_FSDP_BEGINS):
            if thread not in open_in or event.name.startswith(_FSDP_BEGINS[0]):
                of_thread.append([event.begin_ns, event.begin_ns])
                open_in.add(thread)
        elif event.name.startswith(_FSDP_ENDS) and thread in open_in:
            of_thread[-1][1] = event.end_ns
    return {
        thread: stretches(*np.array(found, dtype=np.int64).T)
        for thread, found in passes.items()
        if found
    }


def _set(
    phase: Ints,
    code: Phase,
    at_ns: Ints,
    thread: Ints,
    of_thread: int,
    inside: Stretches,
    only: Phase | None = None,
) -> None:
    row = np.searchsorted(inside.begin_ns, at_ns, side="right") - 1
    chosen = (thread == of_thread) & (row >= 0)
    if only is not None:
        chosen &= phase == int(only)
    chosen[chosen] = at_ns[chosen] <= inside.end_ns[row[chosen]]
    phase[chosen] = int(code)


def pass_records(
    events: ProfilerEvents,
    calls: CallColumns,
    steps: FoundSteps,
    work: Intervals,
    device: int | None,
    thread: int,
) -> Records | None:
    """Makes records of backward passes in the form that capture writes.

    Returns None if there are no DDP buckets, or if the time of a bucket is not known.
    """
    rows, step = bucket_rows(events, calls, steps)
    if len(rows) == 0 or not calls.timed[rows].all():
        return None
    buckets = [calls[row] for row in rows.tolist()]
    ready_ns = _ready_ns(events, buckets, work, device)
    end_ns = np.array([call.end_ns for call in buckets], dtype=np.int64)
    records = []
    for row, call, ready in zip(rows.tolist(), buckets, ready_ns.tolist(), strict=True):
        begun = _record(Kind.BUCKET, ready, row + 1)
        begun["bytes_in"], begun["value"] = call.bytes_in, call.launch_ns
        records += [begun, _record(Kind.BUCKET_END, call.end_ns, row + 1)]
    phase, when = find_phases(events, work, device)
    computed_ns = when.end_ns[phase == Phase.BACKWARD]
    last = np.searchsorted(computed_ns, steps.end_ns, side="right") - 1
    for number in np.unique(step).tolist():
        begin = int(computed_ns[last[number]]) if last[number] >= 0 else 0
        if begin > steps.begin_ns[number]:
            end = max(begin, int(end_ns[step == number].max()))
            records += [
                _record(Kind.FINALIZE_BEGIN, begin, number),
                _record(Kind.FINALIZE_END, end, number),
            ]
    joined = np.concatenate(records)
    joined["thread"] = thread
    return joined


def with_passes(trace: Trace) -> Trace:
    """Returns the trace with the records of its backward passes among the other records."""
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
    """Returns the time in ns at which each bucket was ready (see the module's docstring).

    A bucket was ready at the latest when its all-reduce began.
    """
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
