"""When a collective began to run: gloo queues what its threads cannot take at once.

gloo's process group has a queue and so many threads (``ProcessGroupGloo::Options::threads``; the
trace says how many, and torch's default is 2). A thread takes the oldest collective and keeps it
to its end. Hence with n threads

    start_k = max(issue_k, n-th largest end among the collectives issued before k)

by group and rank: until that time all threads were taken. No start is measured; this follows
from issue and end, which are. Messages (send, recv) and ``monitored_barrier`` pass no queue.

On a device a group's collectives follow each other on one stream: one thread in the place of two.
This is said of collectives whose completion a device event told.
"""

from __future__ import annotations

import heapq

import numpy as np

from commprof.analysis.align.matching import POINT_TO_POINT
from commprof.trace.columns import Collectives, Ints
from commprof.trace.documents import Group
from commprof.trace.reader import Trace
from commprof.trace.schema import FLAG_DEVICE_TIME, OPS, Kind

#: torch's default for a process group, assumed where the trace does not say.
DEFAULT_GLOO_THREADS = 2
#: Of a process group on a device.
DEVICE_STREAMS = 1

_UNQUEUED = (*POINT_TO_POINT, OPS.index("monitored_barrier"))
#: More are no number of threads.
_MOST_THREADS = 1 << 16
_NEVER = np.iinfo(np.int64).max


def start_times(trace: Trace, table: Collectives) -> Ints:
    """Start of each collective of one rank, in ns; 0 where it is not known.

    It is not known without device events for backends of whose queue the trace does not tell, nor
    where it depends on a collective whose end was not seen: then the start is derived for the
    earliest and for the latest end that this one can have had, and is known if both agree.
    """
    if trace.kernels is not None:
        return table.issue_ns  # a kernel's own begin
    start = np.zeros(len(table), dtype=np.int64)
    unqueued = np.isin(table.op, _UNQUEUED)
    on_device = _groups_on_device(trace, table)
    for group in trace.groups.values():
        in_group = table.group == group.id
        # The trace names the threads of gloo's groups, and of those of the backend commprof.
        has_queue = group.backend == "gloo" or _threads(trace, group) > 0
        if not has_queue and group.id not in on_device:
            continue
        gloo_threads = _threads(trace, group) or DEFAULT_GLOO_THREADS
        threads = DEVICE_STREAMS if group.id in on_device else gloo_threads
        start[unqueued & in_group] = 1
        rows = np.flatnonzero(in_group & ~unqueued)
        exact, issue, end = table.end_is_exact[rows], table.issue_ns[rows], table.end_ns[rows]
        earliest = fifo_starts(issue, np.where(exact, end, issue), threads)
        latest = earliest
        if not exact.all():
            bound = np.where(end > 0, end, _NEVER)
            latest = fifo_starts(issue, np.where(exact, end, bound), threads)
        # Ends are recorded a little after the fact, so a start may seem later than its end.
        earliest = np.where(exact, np.minimum(earliest, np.maximum(end, issue)), earliest)
        latest = np.where(exact, np.minimum(latest, np.maximum(end, issue)), latest)
        start[rows] = np.where(earliest == latest, earliest, 0)
    return np.where(unqueued & (start > 0), table.issue_ns, start)


def assumes_threads(trace: Trace) -> bool:
    """Whether the threads of one of its gloo groups of several ranks are not known."""
    groups = (group for group in trace.groups.values() if group.backend == "gloo")
    return any(group.size > 1 and _threads(trace, group) == 0 for group in groups)


def _threads(trace: Trace, group: Group) -> int:
    """0 where they are not known."""
    threads = trace.metadata.get("gloo_threads", {}).get(group.name, 0)
    return threads if type(threads) is int and 0 < threads <= _MOST_THREADS else 0


def _groups_on_device(trace: Trace, table: Collectives) -> set[int]:
    """Numbers of the groups with a collective whose completion a device event told."""
    records = trace.records
    told = (records["kind"] == Kind.END) & (records["flags"] & FLAG_DEVICE_TIME != 0)
    rows = np.isin(table.op_id, records["op_id"][told].astype(np.int64))
    return set(table.group[rows].tolist())


def fifo_starts(issue_ns: Ints, end_ns: Ints, threads: int) -> Ints:
    """Starts in a queue that is served in order by so many threads.

    Args:
        issue_ns: in the order of the queue.
        end_ns: of the same; completion may be in another order.
        threads: at least 1.
    """
    latest = [0] * threads  # a heap: the latest ends so far, the earliest of them first
    starts = np.empty(len(issue_ns), dtype=np.int64)
    for k, (issue, end) in enumerate(zip(issue_ns.tolist(), end_ns.tolist(), strict=True)):
        starts[k] = max(issue, latest[0])
        heapq.heappushpop(latest, end)
    return starts
