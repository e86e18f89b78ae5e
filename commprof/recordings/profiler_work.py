"""Finds when the training thread worked or waited, in a recording without device kernels.

An operator may call other operators, which may wait. So only the innermost operator counts at each
moment:

- The thread works in an operator of the dispatcher (``aten::addmm``), and while it issues a
  collective.
- The thread waits in an operator whose name says so (``wait_tensor``). It also waits in an operator
  of c10d that returns only when the collective is complete (``monitored_barrier``).
- An operator that only calls others counts as neither. Examples are nodes of autograd, functions
  without a namespace (``Redistribute``), and operators that issue a collective or wait inside.

At all other moments the thread ran Python or waited. :mod:`profiler_waiting` decides which.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from commprof.recordings.profiler_events import Intervals, ProfilerEvents
from commprof.recordings.profiler_named import Event
from commprof.recordings.profiler_words import (
    backend_of,
    is_backend_of_torch,
    is_collective_range,
)
from commprof.trace.stretches import Stretches, outside, stretches, union

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: These ranges count as work from begin to end, with the Python code between their operators, if
#: the thread neither issues a collective nor waits inside.
_WORKING_RANGE: Final = re.compile(r"\.forward|Optimizer\.step")
#: Kinds of intervals: an operator that works, the issue of a collective, an operator that waits,
#: and an operator that only calls others.
_WORKS, _ISSUES, _WAITS, _CALLS = range(4)
#: Operators that are nested more deeply are treated as if they had this depth.
_DEEPEST: Final = 100


@dataclass(frozen=True)
class HostWork:
    """Times at which the training thread worked, waited or ran."""

    #: Times of work, tagged with the thread.
    work: Intervals
    waits: Stretches
    #: Times, in order, at which an event of the thread begins or ends. The thread ran at these
    #: times.
    ran_ns: Ints


def no_host_work() -> HostWork:
    """Returns the result for a thread without events."""
    nothing = np.zeros(0, np.int64)
    return HostWork(Intervals(), Stretches(nothing, nothing), nothing)


def host_work(events: ProfilerEvents, blocking: frozenset[str], part_copies: Intervals) -> HostWork:
    """Returns the times at which the training thread worked or waited.

    The training thread is the thread that issues most collectives. Collectives that a backend's
    thread issues in callbacks, as for torch's PowerSGD hook, do not count. If no collective was
    issued, the training thread is the thread that runs most operators.

    Args:
        events: the trace's events.
        blocking: names of c10d's operators that return only when the collective is complete.
        part_copies: copies that complete a reduce-scatter, tagged with the copying thread.
    """
    issued = [event for event in events.issued if event.name.startswith("c10d::")]
    threads = _issuing_threads(events, issued) or _busy_threads(events)
    if not threads:
        return no_host_work()
    main = threads.most_common(1)[0][0]
    mine = [event for event in issued if event.thread == main]
    begin, end = events.operators.of_tag(main)
    copy_begin, copy_end = (np.sort(moments) for moments in part_copies.of_tag(main))
    is_outside = np.searchsorted(copy_begin, begin, side="right") <= np.searchsorted(copy_end, end)
    begin, end = begin[is_outside], end[is_outside]
    issue_begin, issue_end = _moments([event for event in mine if event.name not in blocking])
    wait_begin, wait_end = _joined(
        events.waits.of_tag(main),
        _moments([event for event in mine if event.name in blocking]),
    )
    call_begin, call_end = _joined(events.callers.of_tag(main), events.backward.of_tag(main))
    # Another thread may end the range of a collective that this thread began.
    ranges = [event for event in events.ranges if event.thread == main]
    computed = _moments([event for event in ranges if not is_collective_range(event.name)])
    ran = [begin, end, issue_begin, issue_end, wait_begin, wait_end, call_begin, call_end]
    ran_ns = np.unique(np.concatenate((*ran, *computed, _moments(ranges)[0])))
    quiet_since = ran_ns[np.searchsorted(ran_ns, copy_begin) - 1]
    wait_begin, wait_end = _joined((wait_begin, wait_end), (quiet_since, copy_end))
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
            for event in ranges
            if _WORKING_RANGE.search(event.name)
            and np.searchsorted(inner, event.begin_ns) == np.searchsorted(inner, event.end_ns)
        ]
    )
    working = union(working, Stretches(*whole))
    return HostWork(
        work=_as_intervals(working, main),
        waits=_innermost(begins, ends, kind == _WAITS),
        ran_ns=np.union1d(ran_ns, copy_end),
    )


def _issuing_threads(events: ProfilerEvents, issued: Sequence[Event]) -> Counter[int]:
    """Counts the collectives that each thread issued.

    Issues in callbacks count only if there are no other issues.
    """
    backends, ran = events.backends, defaultdict[int, list[Event]](list)
    for event in events.ranges:
        if is_backend_of_torch(event.name) or backend_of(event.name) in backends:
            ran[event.thread].append(event)
    all_issues, own_issues = Counter[int](), Counter[int]()
    for thread in {event.thread for event in issued}:
        of_thread = _moments([event for event in issued if event.thread == thread])
        all_issues[thread] = len(of_thread[0])
        own_issues[thread] = len(of_thread[0]) - _count_inside(ran[thread], *of_thread)
    return +own_issues or all_issues


def _busy_threads(events: ProfilerEvents) -> Counter[int]:
    threads, ran = Counter[int](), defaultdict[int, list[Event]](list)
    for event in events.ranges:
        if is_collective_range(event.name):
            ran[event.thread].append(event)
    for thread, count in Counter([*events.operators.tag, *events.callers.tag]).items():
        threads[thread] = count - _count_inside(ran[thread], *events.operators.of_tag(thread))
    return +threads


def _count_inside(ranges: Sequence[Event], begin_ns: Ints, end_ns: Ints) -> int:
    if not ranges:
        return 0
    transfers = stretches(*_moments(ranges))
    row = np.searchsorted(transfers.begin_ns, begin_ns, side="right") - 1
    return int(((row >= 0) & (end_ns <= transfers.end_ns[np.maximum(row, 0)])).sum())


def _joined(some: tuple[Ints, Ints], others: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    return np.concatenate((some[0], others[0])), np.concatenate((some[1], others[1]))


def _moments(events: Sequence[Event]) -> tuple[Ints, Ints]:
    return (
        np.array([event.begin_ns for event in events], np.int64),
        np.array([event.end_ns for event in events], np.int64),
    )


def _innermost(begin_ns: Ints, end_ns: Ints, works: Mask) -> Stretches:
    """Returns the times at which ``works`` is true for the innermost interval."""
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


def _as_intervals(some: Stretches, thread: int) -> Intervals:
    made = Intervals()
    made.begin_ns.frombytes(some.begin_ns.tobytes())
    made.end_ns.frombytes(some.end_ns.tobytes())
    made.tag.frombytes(np.full(len(some), thread, np.int64).tobytes())
    made.device.frombytes(np.zeros(len(some), np.int64).tobytes())
    return made
