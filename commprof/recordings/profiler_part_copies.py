"""Finds the copies with which gloo ends a reduce-scatter.

gloo runs a reduce-scatter as an all-reduce of the whole input. ``Work.wait`` then copies the rank's
part of the sum into the output, on the waiting thread (``aten::chunk``, then ``aten::copy_``). The
reduce-scatter is complete only when this copy is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from commprof.recordings.profiler_calls import CLOSED_LATE_NS, Call
from commprof.recordings.profiler_events import Intervals, ProfilerEvents

Ints = npt.NDArray[np.int64]


def end_with_part_copies(
    events: ProfilerEvents, calls: list[Call], of_sums: Sequence[tuple[int, int, int]]
) -> Intervals:
    """Moves the ends of reduce-scatters to the ends of the copies that complete them.

    Args:
        events: the trace's events.
        calls: the calls; their ends are changed in this list.
        of_sums: for each reduce-scatter that the backend ran as another operation: thread of its
            operator, end of its operator, and index in ``calls``.

    Returns:
        The copies, each from the begin of ``aten::chunk``, tagged with the thread.
    """
    copies = Intervals()
    for thread in {thread for thread, _, _ in of_sums}:
        rows = [row for of_thread, _, row in of_sums if of_thread == thread]
        issued_ns = [end_ns for of_thread, end_ns, _ in of_sums if of_thread == thread]
        since_ns = np.array([calls[row].end_ns for row in rows], np.int64) - CLOSED_LATE_NS
        for index, begin_ns, end_ns in _copies(events, thread, np.maximum(since_ns, issued_ns)):
            call = calls[rows[index]]
            calls[rows[index]] = replace(call, end_ns=max(end_ns, call.end_ns), kernels=())
            copies.add(begin_ns, end_ns, thread)
    return copies


def _copies(events: ProfilerEvents, thread: int, since_ns: Ints) -> Sequence[tuple[int, int, int]]:
    """Returns the copies that a thread runs directly after the times ``since_ns``.

    A copy counts if the thread's first event after such a time is ``aten::chunk`` and the copy is
    the next event.

    Returns:
        For each copy: index in ``since_ns``, begin of ``aten::chunk``, and end of the copy.
    """
    begin, end = events.operators.of_tag(thread)
    if not events.chunked_ns or not len(begin):
        return []
    order = np.lexsort((-end, begin))
    begin, end = begin[order], end[order]
    tables = [some.table for some in (events.ranges, events.issued)]
    others = [
        *(some.of_tag(thread)[0] for some in (events.backward, events.waits, events.callers)),
        *(table.begin_ns[table.thread == thread] for table in tables),
    ]
    begins = np.append(np.sort(np.concatenate((begin, *others))), np.iinfo(np.int64).max)
    first = begins[np.searchsorted(begins, since_ns)]
    is_chunk = np.isin(first, np.frombuffer(events.chunked_ns, np.int64)) & np.isin(first, begin)
    index = np.flatnonzero(is_chunk)
    chunked_ns = end[np.searchsorted(begin, first[index])]
    copy = np.searchsorted(begin, chunked_ns)
    is_next = np.append(begin, 0)[copy] == begins[np.searchsorted(begins, chunked_ns)]
    index, copy = index[is_next], copy[is_next]
    return list(zip(index.tolist(), first[index].tolist(), end[copy].tolist(), strict=True))
