"""When the training thread of a recording without device kernels worked, and when it waited.

An operator's interval says that the thread was inside it, not that it worked: an operator may call
others, and one of those may wait. So the innermost operator counts at each moment:

- work: an operator of the dispatcher (``aten::addmm``), and the issue of a collective;
- waiting: an operator that waits by its name (``wait_tensor``), and an operator of c10d that
  returns only when what it issued is complete (``monitored_barrier``);
- neither: operators that only call others. These are nodes of autograd, functions without a
namespace
  (``Redistribute``), and every operator that issues a collective or waits inside.

Where the thread did neither, and between operators, it may have run Python or waited. A thread that
waits records nothing, and continues when the collective is complete. So between two successive
begins or ends of its events, the thread waited until the last collective that was completed in
between, and then ran Python. If none was completed, it did not wait.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from commprof.recordings.profiler_calls import Call
from commprof.recordings.profiler_events import Intervals, ProfilerEvents
from commprof.recordings.profiler_named import Event
from commprof.recordings.profiler_words import is_collective_range
from commprof.trace.stretches import Stretches, between, outside, stretches, union, within

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: Ranges that count as work as a whole, including the Python code between their operators.
_WORKING_RANGE: Final = re.compile(r"\.forward|Optimizer\.step")
#: A collective's range may end at most this long after the thread that waited for it continued.
_CLOSED_LATE_NS: Final = 100_000
_NEVER: Final = np.iinfo(np.int64).max
#: Kinds of intervals. ``_WORKS``: operators of the dispatcher that hold no other kind; ``_ISSUES``:
#: issues of collectives; ``_WAITS``: operators that wait; ``_CALLS``: operators that call others.
_WORKS, _ISSUES, _WAITS, _CALLS = range(4)
#: Deepest nesting of operators that is distinguished.
_DEEPEST: Final = 100


@dataclass(frozen=True)
class HostWork:
    """Times of the training thread."""

    #: Work, tagged with the thread; empty if no operator of the thread was recorded.
    work: Intervals
    #: Operators that wait.
    waits: Stretches
    #: Begins and ends of the thread's events, in order: the thread ran at these times.
    ran_ns: Ints


def no_host_work() -> HostWork:
    """Returns the times of a thread that recorded nothing."""
    nothing = np.zeros(0, np.int64)
    return HostWork(Intervals(), Stretches(nothing, nothing), nothing)


def host_work(events: ProfilerEvents, blocking: frozenset[str]) -> HostWork:
    """Returns the work of the training thread on the host.

    The training thread is the thread that issues most collectives. If no collective was issued, it
    is the thread that runs most operators outside of the backend's ranges.

    Args:
        events: the trace's events.
        blocking: names of c10d's operators that return only when what they issued is complete.
    """
    issued = [event for event in events.issued if event.name.startswith("c10d::")]
    threads = Counter(event.thread for event in issued) or _busy_threads(events)
    if not threads:
        return no_host_work()
    main = threads.most_common(1)[0][0]
    mine = [event for event in issued if event.thread == main]
    begin, end = _of_thread(events.operators, main)
    issue_begin, issue_end = _moments([event for event in mine if event.name not in blocking])
    wait_begin, wait_end = _joined(
        _of_thread(events.waits, main),
        _moments([event for event in mine if event.name in blocking]),
    )
    call_begin, call_end = _joined(
        _of_thread(events.callers, main), _of_thread(events.backward, main)
    )
    inner = np.sort(np.concatenate((issue_begin, wait_begin)))
    calls_inside = np.searchsorted(inner, end) > np.searchsorted(inner, begin)
    begins = np.concatenate((begin, issue_begin, wait_begin, call_begin))
    ends = np.concatenate((end, issue_end, wait_end, call_end))
    kind = np.repeat(
        *([_ISSUES, _WAITS, _CALLS], [len(issue_begin), len(wait_begin), len(call_begin)])
    )
    kind = np.concatenate((np.where(calls_inside, _CALLS, _WORKS), kind))
    working = _innermost(begins, ends, (kind == _WORKS) | (kind == _ISSUES))
    whole = _moments(
        [
            event
            for event in events.ranges
            if event.thread == main
            and _WORKING_RANGE.search(event.name)
            and np.searchsorted(inner, event.begin_ns) == np.searchsorted(inner, event.end_ns)
        ]
    )
    working = union(working, Stretches(*whole))
    # Another thread may end the range of a collective that this thread began.
    ranges = [event for event in events.ranges if event.thread == main]
    computed = _moments([event for event in ranges if not is_collective_range(event.name)])
    return HostWork(
        work=_as_intervals(working, main),
        waits=_innermost(begins, ends, kind == _WAITS),
        ran_ns=np.unique(np.concatenate((begins, ends, *computed, _moments(ranges)[0]))),
    )


def working_or_python(
    host: HostWork, calls: Sequence[Call], copied_back_ns: array[int]
) -> Stretches:
    """Returns the work plus the times in which the thread does not wait for a collective.

    The range of a collective may end a little after the thread that waited for it went on: by at
    most 0.1 ms, and by no longer than the thread waited.

    A thread that copies a bucket back for DDP has waited for this bucket. So the thread also waited
    where a copy follows although no collective has completed, if one is not complete yet: gloo's
    thread had no core, and records the completion late.
    """
    work = stretches(
        np.frombuffer(host.work.begin_ns, np.int64), np.frombuffer(host.work.end_ns, np.int64)
    )
    busy = union(work, host.waits)
    idle = Stretches(busy.end_ns[:-1], busy.begin_ns[1:])
    pieces = within(idle, between(host.ran_ns))
    since, until = pieces.begin_ns, pieces.end_ns
    # The call lasts until the end of all work that the backend's thread ran within the range,
    # because other threads wait for all of it.
    times = [(call.begin_ns, until_ns) for call in calls for _, until_ns in call.times_ns[-1:]]
    begins, ends = np.array(sorted(times, key=_end), dtype=np.int64).reshape(-1, 2).T
    following = np.searchsorted(ends, until, side="right")
    last = np.concatenate(([0], ends))[following]
    # A collective that was in flight all this time may have ended a little late.
    end_ns, begin_ns = (np.append(moments, _NEVER)[following] for moments in (ends, begins))
    late = end_ns - until <= np.minimum(until - since, _CLOSED_LATE_NS)
    copies = np.sort(np.frombuffer(copied_back_ns, np.int64)) if copied_back_ns else ends[:0]
    soon = np.searchsorted(copies, until + _CLOSED_LATE_NS) > np.searchsorted(copies, until)
    is_open = np.searchsorted(np.sort(begins), until) > following
    last = np.where((late & (begin_ns <= since)) | (soon & is_open & (last <= since)), until, last)
    begin = np.clip(last, since, until)
    return outside(union(busy, Stretches(begin, until)), host.waits)


def _busy_threads(events: ProfilerEvents) -> Counter[int]:
    """Counts operators by thread, without those that a backend runs on its own threads."""
    threads: Counter[int] = Counter()
    ran: dict[int, list[Event]] = {}
    for event in events.ranges:
        if is_collective_range(event.name):
            ran.setdefault(event.thread, []).append(event)
    for thread, count in Counter([*events.operators.tag, *events.callers.tag]).items():
        inside = np.zeros(0, np.bool_)
        if thread in ran:
            begin, end = _of_thread(events.operators, thread)
            transfers = stretches(*_moments(ran[thread]))
            row = np.searchsorted(transfers.begin_ns, begin, side="right") - 1
            inside = (row >= 0) & (end <= transfers.end_ns[np.maximum(row, 0)])
        if count > inside.sum():
            threads[thread] = count - int(inside.sum())
    return threads


def _of_thread(some: Intervals, thread: int) -> tuple[Ints, Ints]:
    if not len(some):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    chosen = np.frombuffer(some.tag, np.int64) == thread
    return (
        np.frombuffer(some.begin_ns, np.int64)[chosen],
        np.frombuffer(some.end_ns, np.int64)[chosen],
    )


def _joined(some: tuple[Ints, Ints], others: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    return np.concatenate((some[0], others[0])), np.concatenate((some[1], others[1]))


def _moments(events: Sequence[Event]) -> tuple[Ints, Ints]:
    return (
        np.array([event.begin_ns for event in events], np.int64),
        np.array([event.end_ns for event in events], np.int64),
    )


def _innermost(begin_ns: Ints, end_ns: Ints, works: Mask) -> Stretches:
    """Returns the times in which the innermost of nested intervals is one that works."""
    order = np.lexsort((-end_ns, begin_ns))
    order = order[end_ns[order] > begin_ns[order]]
    begin_ns, end_ns, works = begin_ns[order], end_ns[order], works[order]
    ended = np.searchsorted(np.sort(end_ns), begin_ns, side="right")
    depth = np.minimum(np.arange(len(order)) - ended, _DEEPEST)
    working = Stretches(begin_ns[:0], end_ns[:0])
    for level in np.unique(depth).tolist():
        rows, resting = (depth == level) & works, (depth == level) & ~works
        working = outside(working, stretches(begin_ns[resting], end_ns[resting]))
        working = union(working, Stretches(begin_ns[rows], end_ns[rows]))
    return working


def _end(times: tuple[int, int]) -> int:
    return times[1]


def _as_intervals(some: Stretches, thread: int) -> Intervals:
    made = Intervals()
    made.begin_ns.frombytes(some.begin_ns.tobytes())
    made.end_ns.frombytes(some.end_ns.tobytes())
    made.tag.frombytes(np.full(len(some), thread, np.int64).tobytes())
    made.device.frombytes(np.zeros(len(some), np.int64).tobytes())
    return made
