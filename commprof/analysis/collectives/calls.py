"""Start, queue, wait and transfer time of each collective of the measured steps.

gloo queues the collectives of a process group. A number of threads
(``ProcessGroupGloo::Options::threads``, 2 by default) serve the queue. A thread takes the oldest
collective and runs it to its end. Starts are not recorded. With n threads, they follow from the
recorded issues and ends on the rank:

    start_k = max(issue_k, n-th largest end among the collectives issued before k)

Point-to-point messages (send, recv) and ``monitored_barrier`` do not pass through the queue.

On a device, the collectives of a group follow each other on one stream, as with a single thread.
This applies to groups with a collective whose completion was timed by a device event. A group may
also have a backend for CPU tensors, with a queue of its own.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.alike_ranks import sizes_of_groups
from commprof.analysis.align.device_timeline import device_collectives
from commprof.analysis.align.matching import RECV, Matching, last_awaited
from commprof.analysis.collectives.traffic import sizes_bytes
from commprof.analysis.step.exposure import exposures_of, training_threads
from commprof.field_groups import FieldGroup
from commprof.trace import columns
from commprof.trace.columns import Collectives, Ints, Steps, steps_of_ranks, tables_of
from commprof.trace.documents import Group
from commprof.trace.lookup import among, joined_column, kept_once, repeated, row_containing
from commprof.trace.ranks import (
    Narrow,
    firsts,
    firsts_of,
    in_blocks,
    joined,
    ranks_of,
    rows_containing,
)
from commprof.trace.reader import Trace
from commprof.trace.schema import (
    FLAG_DEVICE_ASYNC,
    FLAG_DEVICE_TIME,
    OPS,
    POINT_TO_POINT,
    Kind,
    Phase,
)

#: torch's default number of threads of a process group, for traces without this number.
DEFAULT_GLOO_THREADS = 2
DEVICE_STREAMS = 1

_UNQUEUED = (*POINT_TO_POINT, OPS.index("monitored_barrier"))
#: Largest number of threads that is accepted from a trace.
_MOST_THREADS = 1 << 16
#: Up to this number of threads, array operations compute the starts. With more threads, a loop over
#: the calls computes the starts.
_FEW_THREADS = 32
_NEVER = np.iinfo(np.int64).max

Mask = npt.NDArray[np.bool_]


def start_times(trace: Trace, table: Collectives) -> Ints:
    """Returns the start of each collective of one rank in ns; 0 if unknown.

    A start is unknown if the trace does not describe the queue. A start is also unknown if it
    depends on an end that was not recorded exactly.
    """
    return all_start_times([trace], [table])


def all_start_times(traces: Sequence[Trace], tables: Sequence[Collectives]) -> Ints:
    """Returns :func:`start_times` of all ranks, one rank after the other."""
    parts, bounds = [], [0]
    for _, row in itertools.groupby(zip(traces, tables, strict=True), _queues_of):
        bounds.append(bounds[-1] + len(list(row)))
    for begin, end in itertools.pairwise(bounds):
        some = traces[begin:end], tables[begin:end]
        starts = None if end - begin == 1 else _starts_at_once(*some)
        parts += list(map(_starts_of, *some)) if starts is None else [starts]
    return np.concatenate(parts)


def _queues_of(rank: tuple[Trace, Collectives]) -> Hashable:
    """Returns a key: the starts of ranks with equal keys may be computed together."""
    trace, table = rank
    if trace.device_activity is not None or device_collectives(trace):
        return id(trace)
    queues = tuple([(group.id, _host_threads(trace, group)) for group in trace.groups.values()])
    return len(table), queues


def _host_threads(trace: Trace, group: Group) -> int:
    """Returns the number of threads of a group's queue on the host; 0 if unknown.

    A gloo group with a name has torch's default number, if the trace lacks the number.
    """
    threads = _threads(trace, group)
    # Rows of a gloo group without a name may belong to several different groups.
    if (group.backend == "gloo" and group.name) or threads > 0:
        return threads or DEFAULT_GLOO_THREADS
    return 0


def _starts_at_once(traces: Sequence[Trace], tables: Sequence[Collectives]) -> Ints | None:
    """Computes the starts of all ranks together; None if this is not possible.

    The queues must have the same length, and at most ``_FEW_THREADS`` threads. The ranks must have
    the same groups and numbers of threads.
    """
    shape = len(tables), len(tables[0])
    op, number, issue, end, exact, failed = (
        joined(tables, name).reshape(shape)
        for name in ("op", "group", "issue_ns", "end_ns", "end_is_exact", "failed")
    )
    start = np.zeros(shape, dtype=np.int64)
    unqueued = among(op, *_UNQUEUED)
    for group in traces[0].groups.values():
        threads = _host_threads(traces[0], group)
        if not threads:
            continue
        rows = number == group.id
        start[rows & unqueued] = 1
        rows &= ~unqueued
        count = np.count_nonzero(rows, axis=1)
        if threads > _FEW_THREADS or not (count == count[0]).all():
            return None
        queued: list[npt.NDArray[Any]] = [
            column[rows].reshape(len(tables), -1) for column in (exact, issue, end, failed)
        ]
        start[rows] = _starts_in_queue(queued[0], queued[1], queued[2], queued[3], threads).reshape(
            -1
        )
    return np.where(unqueued & (start > 0), issue, start).reshape(-1)


def _starts_of(trace: Trace, table: Collectives) -> Ints:
    if trace.device_activity is not None:
        # In a recording with a device's kernels, the time of issue is the begin of the kernel.
        return table.issue_ns
    start = np.zeros(len(table), dtype=np.int64)
    unqueued = among(table.op, *_UNQUEUED)
    on_device = _on_timed_device(trace, table)
    for group in trace.groups.values():
        in_group = table.group == group.id
        queues = [(DEVICE_STREAMS, in_group & on_device)]
        if host_threads := _host_threads(trace, group):
            queues.append((host_threads, in_group & ~on_device))
        for threads, rows in queues:
            start[rows & unqueued] = 1
            queued = np.flatnonzero(rows & ~unqueued)
            exact, failed = table.end_is_exact[queued], table.failed[queued]
            issue, end = table.issue_ns[queued], table.end_ns[queued]
            start[queued] = _starts_in_queue(exact, issue, end, failed, threads)
    return np.where(unqueued & (start > 0), table.issue_ns, start)


def _starts_in_queue(exact: Mask, issue: Ints, end: Ints, failed: Mask, threads: int) -> Ints:
    """Returns when each call of one or several queues started; 0 if unknown.

    The last axis of each column runs over the calls of one queue, in order.
    """
    earliest = fifo_starts(issue, np.where(exact, end, issue), threads)
    latest = earliest
    if not exact.all():
        bound = np.where((end > 0) & ~failed, end, _NEVER)
        if threads == 1:  # calls end in the order of issue, except for a call that gloo refused
            bound = np.minimum.accumulate(bound[..., ::-1], axis=-1)[..., ::-1]
        latest = fifo_starts(issue, np.where(exact, end, bound), threads)
    # Ends are recorded a little late, so a derived start may be later than the call's own end.
    earliest = np.where(exact, np.minimum(earliest, np.maximum(end, issue)), earliest)
    latest = np.where(exact, np.minimum(latest, np.maximum(end, issue)), latest)
    starts: Ints = np.where(earliest == latest, earliest, 0)
    return starts


def assumes_threads(trace: Trace) -> bool:
    """True if a gloo group of several ranks has an unknown number of threads."""
    groups = (group for group in trace.groups.values() if group.backend == "gloo")
    return any(group.size > 1 and _threads(trace, group) == 0 for group in groups)


def _threads(trace: Trace, group: Group) -> int:
    """Returns the number of threads that the trace gives for a group; 0 if there is none.

    If a group on devices has a part for CPU tensors, only this part has threads.
    """
    name = group.name.removesuffix(f":{group.backend}")
    threads = trace.metadata.get("gloo_threads", {}).get(name, 0)
    if type(threads) is not int or not 0 < threads <= _MOST_THREADS:
        return 0
    is_device_part = group.backend != "gloo" and any(
        other.is_cpu_part_of(group.name) for other in trace.groups.values()
    )
    return 0 if is_device_part else threads


def _on_timed_device(trace: Trace, table: Collectives) -> npt.NDArray[np.bool_]:
    records = trace.records
    ends = columns.of_kind(records, Kind.END)
    on_device = ends["flags"] & FLAG_DEVICE_TIME != 0
    if not on_device.any():
        return np.zeros(len(table), dtype=np.bool_)
    timed = np.isin(table.op_id, ends["op_id"][on_device].astype(np.int64))
    issued = columns.of_kind(records, Kind.ISSUE)
    flagged = issued["op_id"][issued["flags"] & FLAG_DEVICE_ASYNC != 0].astype(np.int64)
    return np.isin(table.op_id, flagged) & np.isin(table.group, table.group[timed])


def fifo_starts(issue_ns: Ints, end_ns: Ints, threads: int) -> Ints:
    """Returns the start times in a queue that a number of threads serve in order.

    With up to 32 threads, the arrays may hold several queues: the last axis runs over the calls of
    one queue.

    Args:
        issue_ns: issue of each collective, in the order of the queue.
        end_ns: completion of each collective; completions may be in another order.
        threads: number of threads, at least 1.
    """
    if threads > _FEW_THREADS:
        return _fifo_starts(issue_ns, end_ns, threads)
    # After round k, ``before`` holds for each call the k-th largest end among the calls before it.
    # The smaller of this end and the call's entry in ``latest`` goes on to the next round.
    latest = end_ns
    for _ in range(threads):
        before = np.zeros_like(latest)
        np.maximum.accumulate(latest[..., :-1], axis=-1, out=before[..., 1:])
        np.maximum(before, 0, out=before)
        latest = np.minimum(latest, before)
    starts: Ints = np.maximum(issue_ns, before)
    return starts


def _fifo_starts(issue_ns: Ints, end_ns: Ints, threads: int) -> Ints:
    latest = [0] * threads  # a heap of the latest ends so far
    starts = np.empty(len(issue_ns), dtype=np.int64)
    for k, (issue, end) in enumerate(zip(issue_ns.tolist(), end_ns.tolist(), strict=True)):
        starts[k] = max(issue, latest[0])
        heapq.heappushpop(latest, end)
    return starts


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CallTimes(FieldGroup):
    """Times of calls in nanoseconds; NaN if unknown.

    For a failed call, only the exposed time is known.
    """

    #: Time from issue to completion.
    duration_ns: Floats
    queue_ns: Floats
    wait_ns: Floats
    transfer_ns: Floats
    #: Time for which the call blocked the training thread.
    exposed_ns: Floats
    #: Time from the last start to the last completion among all ranks; equal on all ranks.
    common_transfer_ns: Floats


@dataclass(frozen=True)
class Calls:
    """Calls of collectives, one row per call of a rank."""

    rank: Narrow
    op: Ints
    #: Index of the process group, equal on all ranks; -1 if the group is not described.
    group: Ints
    group_size: Ints
    dtype: Ints
    reduce_op: Ints
    #: Size as nccl-tests counts it, see :mod:`traffic`.
    size_bytes: Ints
    phase: Ints
    #: Id of the call's stack in the rank's own trace; 0 if there is no stack.
    stack: Ints
    times: CallTimes
    failed: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.op)

    @property
    def algbw_gb_per_s(self) -> Floats:
        """Size divided by the time of ``common_transfer_ns``; NaN for calls without data."""
        with np.errstate(invalid="ignore", divide="ignore"):
            bytes_per_ns = self.size_bytes / self.times.common_transfer_ns
        return np.where(self.size_bytes > 0, bytes_per_ns, np.nan)


def calls_of(
    matching: Matching,
    traces: Sequence[Trace],
    tables: Sequence[Collectives],
    measured_steps: Ints | None,
    clocks_shared: bool,
) -> Calls:
    """Collects all calls that were issued in the measured steps.

    Args:
        matching: matching of ``tables``.
        traces: traces of the ranks.
        tables: collectives of each trace.
        measured_steps: numbers of the measured steps; None for the whole recording.
        clocks_shared: True if the traces' times are on one clock; otherwise ``wait_ns``,
            ``transfer_ns`` and ``common_transfer_ns`` are unknown.
    """
    chosen, exposed, phase, stack = (
        joined_column(parts)
        for parts in zip(
            *(
                _in_their_ranks(traces[block], tables[block], measured_steps)
                for block in in_blocks(matching.lengths)
            ),
            strict=True,
        )
    )
    count = int(chosen.sum())

    def cut(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if len(column) and column.strides == (0,):
            return repeated(column[0], count)
        return column[chosen]

    # Joined columns of all ranks are large. To save memory, each column is cut as soon as it is
    # joined.
    exposed, phase, stack = cut(exposed), cut(phase), cut(stack)
    times, issue = _Times.of(traces, tables), joined(tables, "issue_ns")
    failed = joined(tables, "failed")
    duration = cut(np.where(times.exact, times.end - issue, np.nan))
    queue = cut(np.where((times.start > 0) & ~failed, times.start - issue, np.nan))
    failed = cut(failed)
    del issue
    if clocks_shared:
        wait, transfer, common_transfer = _apart(matching, traces, tables, times, chosen)
    else:
        wait, transfer, common_transfer = np.full((3, count), np.nan)
    del times
    group_size = sizes_of_groups(traces, tables)
    op, bytes_in, bytes_out = (joined(tables, name) for name in ("op", "bytes_in", "bytes_out"))
    sizes = kept_once(sizes_bytes(op, bytes_in, bytes_out, group_size))
    del bytes_in, bytes_out
    return Calls(
        rank=matching.rank[chosen],
        op=cut(op),
        group=cut(matching.group),
        group_size=cut(group_size),
        dtype=cut(joined(tables, "dtype")),
        reduce_op=cut(joined(tables, "reduce_op")),
        size_bytes=cut(sizes),
        phase=phase,
        stack=stack,
        times=CallTimes(duration, queue, wait, transfer, exposed, common_transfer),
        failed=failed,
    )


@dataclass(frozen=True)
class _Times:
    """Columns of the joined tables of all ranks; times are in ns, and 0 if unknown.

    ``exact`` is False for an end that was not recorded exactly, and for a failed call.
    """

    start: Ints
    end: Ints
    exact: npt.NDArray[np.bool_]
    op: Ints

    @classmethod
    def of(cls, traces: Sequence[Trace], tables: Sequence[Collectives]) -> _Times:
        return cls(
            all_start_times(traces, tables),
            joined(tables, "end_ns"),
            joined(tables, "end_is_exact") & ~joined(tables, "failed"),
            joined(tables, "op"),
        )


def _apart(
    matching: Matching,
    traces: Sequence[Trace],
    tables: Sequence[Collectives],
    times: _Times,
    chosen: npt.NDArray[np.bool_],
) -> tuple[Floats, Floats, Floats]:
    """Returns the wait, transfer and common transfer of each chosen call in ns; NaN if unknown.

    The wait lasts from the call's start until the last awaited rank starts. The transfer lasts from
    then until the end of the rank's own call. The common transfer lasts from the last start to the
    last end; of a point-to-point message, only the receive's end counts.
    """
    awaited = last_awaited(matching, traces, tables, times.start)
    awaited_ns = matching.times_at(times.start, awaited)
    del awaited
    all_started = matching.every(times.start > 0)
    running = np.where(times.exact, times.end - times.start, np.nan).astype(np.float64, copy=False)
    wait = np.clip(awaited_ns - times.start, 0.0, running)
    del awaited_ns
    wait[~all_started] = np.nan
    transfer = np.subtract(running, wait, out=running)[chosen]
    del running
    wait = wait[chosen]
    counts = ~among(times.op, *POINT_TO_POINT) | (times.op == RECV)
    known = (all_started & matching.every(times.exact | ~counts))[chosen]
    started = matching.times_at(times.start, matching.last_row(times.start)[chosen])
    end = times.end if counts.all() else np.where(counts, times.end, 0)
    ended = matching.times_at(end, matching.last_row(end)[chosen])
    common = np.where(known & (ended > started), ended - started, np.nan)
    return wait, transfer, common


def _in_their_ranks(
    traces: Sequence[Trace], tables: Sequence[Collectives], measured_steps: Ints | None
) -> tuple[npt.NDArray[np.bool_], Floats, Ints, Ints]:
    """Returns four columns with a row per collective of some ranks.

    The first column is True for a collective of a measured step. The other columns are
    ``CallTimes.exposed_ns``, ``Calls.phase`` and ``Calls.stack``.
    """
    waits = tables_of(traces, exposures_of)
    first_call, first_wait = (firsts_of(rows) for rows in (tables, waits))
    collective = joined(waits, "collective")
    counted = np.flatnonzero(
        (collective >= 0) & _measured(traces, measured_steps, joined(waits, "begin_ns"), first_wait)
    )
    exposed = np.bincount(
        collective[counted] + first_call[ranks_of(first_wait)[counted]],
        weights=joined(waits, "waited_ns")[counted],
        minlength=int(first_call[-1]),
    )
    return (
        _measured(traces, measured_steps, joined(tables, "issue_ns"), first_call),
        exposed.astype(np.float64),
        kept_once(_phases_of(traces, tables)),
        kept_once(joined_column(map(_stacks, traces, tables))),
    )


def _stacks(trace: Trace, table: Collectives) -> Ints:
    if not len(columns.of_kind(trace.records, Kind.STACK)):
        return repeated(np.int64(0), len(table))
    return columns.stacks(trace, table.op_id)


def phases_of(trace: Trace, table: Collectives) -> Ints:
    """Returns the code of the phase in which each collective of a rank was issued."""
    return _phases_of([trace], [table])


def _phases_of(traces: Sequence[Trace], tables: Sequence[Collectives]) -> Ints:
    in_phase = _phases_at(traces, tables)
    if any(trace.recorded is not None and trace.recorded.phase is not None for trace in traces):
        first = firsts_of(tables)[1:-1]
        for trace, table, part in zip(traces, tables, np.split(in_phase, first), strict=True):
            if trace.recorded is not None and trace.recorded.phase is not None:
                part[:] = trace.recorded.phase[table.op_id - 1]
    # Collectives of a backward pass count as backward. On a device, their time of issue may be
    # before the phase.
    return np.where(joined(tables, "graph_task") >= 0, int(Phase.BACKWARD), in_phase)


def _measured(
    traces: Sequence[Trace], measured: Ints | None, time_ns: Ints, first: Ints
) -> npt.NDArray[np.bool_]:
    if measured is None:
        return np.ones(len(time_ns), dtype=np.bool_)
    steps, first_step = steps_of_ranks(traces, measured)
    return rows_containing(steps.begin_ns, steps.end_ns, first_step, time_ns, first) >= 0


def step_at(steps: Steps, measured: Ints, time_ns: Ints) -> Ints:
    """Returns the number of the measured step at each time; -1 outside of measured steps."""
    chosen = steps.numbered(measured)
    row = row_containing(chosen.begin_ns, chosen.end_ns, time_ns)
    return np.append(chosen.index, -1)[row]  # row -1 selects -1


def _phases_at(traces: Sequence[Trace], tables: Sequence[Collectives]) -> Ints:
    """Returns the training thread's phase at each call; OTHER outside of phases."""
    phases = tables_of(traces, columns.phases)
    rank = ranks_of(firsts_of(phases))
    thread = training_threads(traces)
    mine = np.flatnonzero(joined(phases, "thread") == thread[rank])
    begin_ns, end_ns = (joined(phases, name)[mine] for name in ("begin_ns", "end_ns"))
    first = firsts(np.bincount(rank[mine], minlength=len(traces)))
    first_call = firsts_of(tables)
    row = rows_containing(begin_ns, end_ns, first, joined(tables, "issue_ns"), first_call)
    key = np.append(joined(phases, "key")[mine], int(Phase.OTHER))[row]  # row -1: OTHER
    return np.where(key < len(Phase), key, int(Phase.OTHER)).astype(np.int64)
