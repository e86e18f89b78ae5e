"""Time in flight of collectives, per step and per call, and its split into four parts.

The parts are named as in Horovod's timeline (docs/timeline.rst of horovod/horovod:
NEGOTIATE_ALLREDUCE, QUEUE, WAIT_FOR_DATA, the operation):

    negotiate: from this rank's issue of the collective until the last rank's issue
    queue:     from then until gloo begins to run the collective on this rank
    wait:      from then until the last rank has begun to run the collective
    transfer:  from then until the collective completes on this rank

Two parts differ from Horovod's parts. c10d does not negotiate: an early rank waits inside the
collective. Horovod's wait is for data from the GPU; commprof's wait is for the last rank to begin.

The report's table of collectives splits the time differently: queue is the time from issue to the
start on this rank, and wait is the time from this start to the last rank's start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.alike_ranks import sizes_of_groups
from commprof.analysis.align.matching import Matching, bucket_numbers, last_awaited
from commprof.analysis.collectives.calls import all_start_times
from commprof.analysis.collectives.traffic import sizes_bytes
from commprof.analysis.step.breakdown import time_covered
from commprof.analysis.step.measured import MeasuredWorld
from commprof.trace import columns
from commprof.trace.columns import Collectives, Ints, steps_of_ranks, tables_of
from commprof.trace.lookup import distinct_rows, is_in, joined_column, kept_once, rows_of
from commprof.trace.ranks import RankTimes, firsts, firsts_of, joined, ranks_of, rows_containing
from commprof.trace.reader import Trace
from commprof.trace.schema import OPS, op_name
from commprof.units import ns_to_ms

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TimeInFlight:
    """Time in flight of one operation over the measured steps."""

    op: str
    #: Time in which a call of the operation was in flight; mean over steps and ranks.
    in_flight_ms: float


def times_in_flight(
    traces: Sequence[Trace], tables: Sequence[Collectives], measured_steps: Ints
) -> tuple[TimeInFlight, ...]:
    """Returns the time in flight of each operation with a known end, sorted by operation code."""
    if len(measured_steps) == 0:
        return ()
    total_ns: dict[int, float] = {}
    steps = tables_of(traces, columns.steps)
    rank, rank_of_step = (ranks_of(firsts_of(rows)) for rows in (tables, steps))
    op, issue_ns, end_ns = (joined(tables, name) for name in ("op", "issue_ns", "end_ns"))
    ended = np.flatnonzero(end_ns > issue_ns)
    op, rank, issue_ns, end_ns = (column[ended] for column in (op, rank, issue_ns, end_ns))
    chosen = np.flatnonzero(is_in(joined(steps, "index"), measured_steps))
    rank_of_step = rank_of_step[chosen]
    begins_ns, ends_ns = (joined(steps, name)[chosen] for name in ("begin_ns", "end_ns"))
    times = RankTimes.of(
        len(traces),
        *((rank, time_ns) for time_ns in (issue_ns, end_ns)),
        *((rank_of_step, time_ns) for time_ns in (begins_ns, ends_ns)),
    )
    bounds = times.key(rank_of_step, begins_ns), times.key(rank_of_step, ends_ns)
    for code in np.unique(op).tolist():
        mine = op == code
        begins, ends = (times.key(rank[mine], time_ns[mine]) for time_ns in (issue_ns, end_ns))
        total_ns[code] = float(time_covered(begins, ends, *bounds).sum())
    rank_steps = len(traces) * len(measured_steps)
    return tuple(
        TimeInFlight(op_name(op), ns_to_ms(ns) / rank_steps) for op, ns in sorted(total_ns.items())
    )


#: Value of ``negotiate_ns`` if the time in flight cannot be split. Then ``transfer_ns`` is the
#: whole time.
UNSPLIT = -1


@dataclass(frozen=True)
class CallKind:
    """Properties that calls of one kind have in common."""

    op: str
    group: str
    dtype: str
    #: Size as nccl-tests counts it.
    size_bytes: int


@dataclass(frozen=True)
class InFlightIntervals:
    """Collectives of one rank, each from issue to completion, in order of issue."""

    step: Ints
    #: Index into ``Timeline.kinds``.
    kind: Ints
    #: Index of the collective, equal on all ranks.
    collective: Ints
    #: Index of DDP's gradient bucket, or ``NO_BUCKET``.
    bucket: Ints
    issue_ns: Ints
    #: ``UNSPLIT`` if the parts are unknown.
    negotiate_ns: Ints
    queue_ns: Ints
    wait_ns: Ints
    transfer_ns: Ints

    @property
    def duration_ns(self) -> Ints:
        """Time from issue to completion."""
        split = np.where(self.negotiate_ns == UNSPLIT, 0, self.negotiate_ns)
        total: Ints = split + self.queue_ns + self.wait_ns + self.transfer_ns
        return total


@dataclass(frozen=True)
class StepTimesInFlight:
    """Times in flight of the calls of all ranks, summed by kind, bucket and measured step."""

    #: Properties of each kind, in ascending order of operation, group, data type and size.
    kinds: tuple[CallKind, ...]
    #: Index into ``kinds``; rows are in ascending order of kind, bucket and step.
    kind: Ints
    #: Index of DDP's gradient bucket, or ``NO_BUCKET``.
    bucket: Ints
    #: Index of the step among the measured steps.
    step: Ints
    #: Number of calls with a recorded end.
    calls: Ints
    #: Sum of the times from issue to completion of these calls.
    time_ns: Floats


def step_times_in_flight(seen: MeasuredWorld) -> StepTimesInFlight:
    """Sums the times in flight of the calls that were issued in the measured steps."""
    tables, measured = seen.tables, seen.measured.step
    kind, kinds = _kinds(seen)
    issue_ns, end_ns = joined(tables, "issue_ns"), joined(tables, "end_ns")
    steps, first_step = steps_of_ranks(seen.traces, measured)
    first_call = firsts(seen.matching.lengths)
    within = rows_containing(steps.begin_ns, steps.end_ns, first_step, issue_ns, first_call)
    bucket = joined_column(map(bucket_numbers, seen.recorded, tables))
    used = np.flatnonzero((within >= 0) & (end_ns >= issue_ns))
    step = within[used] - first_step[ranks_of(first_call)[used]]
    kind, bucket = kind[used], bucket[used]
    cell, first = distinct_rows(kind, bucket, step)
    time_ns = np.bincount(cell, weights=(end_ns - issue_ns)[used], minlength=len(first))
    return StepTimesInFlight(
        *(kinds, kind[first], bucket[first], step[first], np.bincount(cell, minlength=len(first))),
        time_ns.astype(np.float64),
    )


def in_flight_intervals(
    seen: MeasuredWorld,
) -> tuple[list[InFlightIntervals], tuple[CallKind, ...]]:
    """Returns each rank's intervals in flight, and the kinds of their calls.

    Collectives without a recorded end are left out. ``step`` is 0 in all rows, until the caller
    sets it.
    """
    matching, tables = seen.matching, seen.tables
    kind, kinds = _kinds(seen)
    issue = joined(tables, "issue_ns")
    split = matching.split
    parts = [split(part) for part in _flight_parts(seen, matching, issue)]
    kind_of, member, issued = (split(x) for x in (kind, matching.member, issue))
    bucket = [bucket_numbers(*each) for each in zip(seen.recorded, tables, strict=True)]
    no_step = [np.zeros(len(table), dtype=np.int64) for table in tables]
    found = [
        InFlightIntervals(*each)
        for each in zip(no_step, kind_of, member, bucket, issued, *parts, strict=True)
    ]
    return [rows_of(each, each.transfer_ns >= 0) for each in found], kinds


def _kinds(seen: MeasuredWorld) -> tuple[Ints, tuple[CallKind, ...]]:
    """Returns the index of each call's kind for all ranks, and the kinds."""
    matching, tables, traces = seen.matching, seen.tables, seen.traces
    sizes = sizes_of_groups(traces, tables)
    op, dtype, bytes_in, bytes_out = (
        joined(tables, name) for name in ("op", "dtype", "bytes_in", "bytes_out")
    )
    keys = (op, matching.group, dtype, kept_once(sizes_bytes(op, bytes_in, bytes_out, sizes)))
    row, first = distinct_rows(*keys)
    dtypes = traces[0].metadata["dtypes"]
    kind_of_row = [
        CallKind(
            op=OPS[code] if code < len(OPS) else "",
            group=matching.groups[group].name if group >= 0 else "",
            dtype=dtypes[type_code] if type_code < len(dtypes) and bytes_ else "",
            size_bytes=bytes_,
        )
        for code, group, type_code, bytes_ in zip(
            *(key[first].tolist() for key in keys), strict=True
        )
    ]
    # Different keys may make equal kinds, because groups can have the same name, and calls without
    # bytes have no type. Equal kinds get one number.
    number = {kind: index for index, kind in enumerate(dict.fromkeys(kind_of_row))}
    number_of_row = np.array([number[kind] for kind in kind_of_row], dtype=np.int64)
    return number_of_row[row], tuple(number)


def _flight_parts(seen: MeasuredWorld, matching: Matching, issue: Ints) -> tuple[Ints, ...]:
    """Returns each call's negotiate, queue, wait and transfer in ns.

    If the split is unknown, negotiate is ``UNSPLIT``, queue and wait are 0, and transfer is the
    whole time. If only starts are unknown, queue and wait are 0, and transfer includes them. If no
    end was recorded, transfer is -1.
    """
    end = joined(seen.tables, "end_ns")
    exact = joined(seen.tables, "end_is_exact")
    start = all_start_times(seen.traces, seen.tables)
    (last_issue, _), (last_start, _) = (
        matching.at(times, last_awaited(matching, seen.traces, seen.tables, times))
        for times in (issue, start)
    )
    started = matching.every(start > 0)
    ready = np.clip(last_issue, issue, np.maximum(end, issue))
    here = np.where(started, np.clip(start, ready, np.maximum(end, ready)), ready)
    there = np.where(started, np.clip(last_start, here, np.maximum(end, here)), here)
    known = exact & (end >= issue) & (last_issue > 0) & seen.clocks_shared
    in_flight = np.where(end >= issue, end - issue, -1)
    return (
        np.where(known, ready - issue, UNSPLIT),
        np.where(known, here - ready, 0),
        np.where(known, there - here, 0),
        np.where(known, end - there, in_flight),
    )
