"""Joins the tables of neighbouring ranks to blocks. A block is computed like one rank.

The computation for one rank takes hundreds of numpy calls. If ranks have few records, these calls
cost more than the work in them. A block needs the calls only once for all its ranks. In a block,
times are shifted so that the intervals of different ranks do not touch. The ids of backward passes
and operations are shifted too. The results are split by rank.

A block's time span is limited, because its times are summed as floats. A rank that cannot be joined
is a block of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.arrivals import Arrivals
from commprof.analysis.step.device_times import device_times, times_in_steps
from commprof.analysis.step.exposure import Exposures, exposures_of
from commprof.trace import columns
from commprof.trace.columns import (
    Collectives,
    Finalizations,
    Ints,
    Spans,
    Steps,
    discard,
    keep,
    keep_rows,
    shifted,
    shifted_ns,
    tables_of,
)
from commprof.trace.device_activity import DeviceActivity
from commprof.trace.found_steps import DECLARED, UPDATE, chosen_marks, complete_steps
from commprof.trace.joined_records import KINDS, LARGEST, JoinedRecords
from commprof.trace.lookup import Table, joined_column, map_columns, rows_of
from commprof.trace.packed import packed
from commprof.trace.ranks import MOST_ROWS, firsts_of, lengths_of
from commprof.trace.ranks import joined as joined_columns
from commprof.trace.reader import Trace
from commprof.trace.schema import MOMENTS, Kind, Records

Column = npt.NDArray[Any]

#: Longest time span of a block in ns. As a float, a time up to this is exact to 1e-5 ns.
_LONGEST_NS = 2**37
#: Least time between the records of two ranks of a block.
_APART_NS = 10_000_000
_TRAINING, _OTHER = 1, 2


@dataclass(frozen=True)
class RankBlock:
    """Neighbouring ranks that are computed like one rank."""

    #: Index of the first rank of the block among all ranks.
    first: int
    #: Trace with the joined tables of the block's ranks, but without calls. For a block of one
    #: rank, this is the rank's own trace.
    trace: Trace
    #: Per rank: shifted time at which its records begin.
    begins_ns: Ints
    #: Per rank: number that was added to its times.
    shift_ns: Ints
    #: Per rank: number that was added to its ids of backward passes.
    task_shift: Ints
    #: Per rank: number that was added to its ids of operations.
    call_shift: Ints
    threads: Ints
    #: First row of each rank among the block's calls; the last entry is the number of calls.
    calls: Ints
    #: First row of each rank among the block's steps; the last entry is the number of steps.
    steps: Ints
    #: Calls of each rank, with the rank's own times and ids.
    tables: Sequence[Collectives]

    def __len__(self) -> int:
        """Number of ranks."""
        return len(self.shift_ns)

    @property
    def places(self) -> slice:
        """Indices of the block's ranks among all ranks."""
        return slice(self.first, self.first + len(self))

    def rank_at(self, time_ns: Ints) -> Ints:
        """Returns, per shifted time, the index of its rank in the block."""
        return np.maximum(0, np.searchsorted(self.begins_ns, time_ns, side="right") - 1)

    def arrivals(self, of_ranks: Sequence[Arrivals]) -> Arrivals:
        """Joins the arrivals of the ranks of the block."""
        if len(self) == 1:
            return of_ranks[0]
        buckets = [each.buckets for each in of_ranks]
        count = list(map(len, buckets))
        joined_buckets = joined_tables(buckets)
        passes, task = joined_buckets.graph_task, np.repeat(self.task_shift, count)
        arrived_ns = joined_columns(of_ranks, "last_arrival_ns")
        return Arrivals(
            last_arrival_ns=shifted_ns(arrived_ns, np.repeat(self.shift_ns, np.diff(self.calls))),
            late_rank=joined_columns(of_ranks, "late_rank"),
            collective=joined_columns(of_ranks, "collective"),
            buckets=replace(
                shifted(joined_buckets, np.repeat(self.shift_ns, count)),
                graph_task=np.where(passes >= 0, passes + task, passes),
            ),
        )

    def join_calls(self, of_ranks: Sequence[Collectives]) -> Collectives:
        """Joins the calls of the ranks of the block; the block does not keep the result."""
        if len(self) == 1:
            return of_ranks[0]
        count = np.diff(self.calls)
        calls = Collectives(*(joined_columns(of_ranks, each.name) for each in fields(Collectives)))
        calls = shifted(calls, np.repeat(self.shift_ns, count))
        passes, task = calls.graph_task, np.repeat(self.task_shift, count)
        return replace(
            calls,
            op_id=calls.op_id + np.repeat(self.call_shift, count),
            graph_task=np.where(passes >= 0, passes + task, -1),
            thread=_block_threads(calls.thread, np.repeat(self.threads, count)),
        )

    def find_exposures(self, calls: Collectives) -> None:
        """Computes ``exposures_of`` of the block's trace, and caches the result.

        Then frees the block's waits, which are no longer needed.

        Args:
            calls: result of :meth:`join_calls`.
        """
        if len(self) > 1:
            keep(self.trace, columns.collectives, calls)
        exposures_of(self.trace)
        if len(self) > 1:
            discard(self.trace, columns.collectives)
        discard(self.trace, columns.waits)

    def exposures_of_ranks(self) -> tuple[Exposures, Ints]:
        """Returns the waiting of all ranks, with each rank's own times and ids.

        Also returns the first row of each rank; the last entry is the number of rows.
        """
        found = exposures_of(self.trace)
        if len(self) == 1:
            return found, np.array([0, len(found)])
        rank = self.rank_at(found.begin_ns)
        shift_ns = self.shift_ns[rank]
        whole = Exposures(
            np.where(found.collective >= 0, found.collective - self.calls[rank], -1),
            np.where(found.graph_task >= 0, found.graph_task - self.task_shift[rank], -1),
            found.begin_ns - shift_ns,
            found.end_ns - shift_ns,
            found.waited_ns,
        )
        return whole, np.searchsorted(rank, np.arange(len(self) + 1))

    def hand_tables_to(self, traces: Sequence[Trace]) -> None:
        """Moves ``exposures_of`` and ``device_times`` from the block to its ranks."""
        if len(self) == 1:
            return
        whole, first = self.exposures_of_ranks()
        keep_rows(traces, exposures_of, whole, np.diff(first))
        discard(self.trace, exposures_of)
        if self.trace.device_activity is not None:
            ran = device_times(self.trace)
            cuts = itertools.pairwise(self.steps.tolist())
            for trace, rows in zip(traces, itertools.starmap(slice, cuts), strict=True):
                keep(trace, device_times, rows_of(ran, rows))
            discard(self.trace, device_times)


def joined(traces: Sequence[Trace]) -> list[RankBlock]:
    """Joins neighbouring ranks to blocks."""
    blocks: list[RankBlock] = []
    records = JoinedRecords((), None, tuple(packed(trace.records) for trace in traces))
    _keep_steps(traces, records)
    spans = _spans_ns(traces, records)
    shapes = _shapes(traces, records, spans)
    calls = records.counts(Kind.ISSUE).tolist()
    place = 0
    while place < len(traces):
        end, length_ns, rows = place, 0, 0
        while end < len(traces) and spans[end] is not None:
            begin_ns, until_ns = spans[end] or (0, 0)
            length_ns += until_ns - begin_ns
            rows += calls[end] + _device_rows(traces[end])
            alike = shapes[end] == shapes[place]
            if end > place and (length_ns > _LONGEST_NS or rows > MOST_ROWS or not alike):
                break
            end += 1
        some = slice(place, end)
        of_block = [span for span in spans[some] if span is not None]
        block = _block(place, traces[some], of_block, records) if end - place > 1 else None
        if block is None:
            end = max(end, place + 1)
            blocks += [alone(at, traces[at]) for at in range(place, end)]
        else:
            blocks.append(block)
        place = end
    return blocks


def alone(place: int, trace: Trace) -> RankBlock:
    """Makes a block of one rank."""
    none, table = np.zeros(1, dtype=np.int64), columns.collectives(trace)
    calls, steps = (np.array([0, len(each)]) for each in (table, columns.steps(trace)))
    return RankBlock(place, trace, none, none, none, none, none, calls, steps, [table])


def _device_rows(trace: Trace) -> int:
    return 0 if trace.device_activity is None else sum(map(len, trace.device_activity.kinds))


def _keep_steps(traces: Sequence[Trace], records: JoinedRecords) -> None:
    """Caches ``columns.steps`` of each rank, except for steps that end at backward passes."""
    count = records.counts(Kind.STEP)
    begins_ns, step, aux, seq, thread = (
        records.recorded(Kind.STEP, name)
        for name in ("timestamp_ns", "op_id", "aux", "seq", "thread")
    )
    time_ns, step, thread = (column.astype(np.int64) for column in (begins_ns, step, thread))
    ends, rank = aux == 1, np.repeat(np.arange(len(traces)), count)
    chosen, by_script = chosen_marks(ends, seq, rank, len(traces))
    by_update = (np.bincount(rank[ends], minlength=len(traces)) > 0) & ~by_script
    if not chosen.all():
        time_ns, step, ends, thread, rank = (
            column[chosen] for column in (time_ns, step, ends, thread, rank)
        )
    rows = complete_steps(step, ends, rank)
    index, begin_ns, end_ns, thread = step[rows], time_ns[rows - 1], time_ns[rows], thread[rows]
    number = np.bincount(rank[rows], minlength=len(traces))
    for source, has in ((DECLARED, by_script), (UPDATE, by_update)):
        some = [trace for trace, is_one in zip(traces, has.tolist(), strict=True) if is_one]
        mine = np.flatnonzero(has[rank[rows]])
        whole = Steps(index[mine], begin_ns[mine], end_ns[mine], thread[mine], source)
        keep_rows(some, columns.steps, whole, number[has], Steps.between)


def _shapes(
    traces: Sequence[Trace], records: JoinedRecords, spans: Sequence[tuple[int, int] | None]
) -> list[tuple[bool, ...] | None]:
    """Returns which kinds of data each rank has; None if the rank cannot be joined.

    All ranks of a block must have the same kinds of data. The kinds are finalised backward passes
    of the training thread, activity of a device, and kernels of communication.
    """
    steps = tables_of(traces, columns.steps)
    known = np.array([span is not None for span in spans], dtype=np.bool_)
    training = np.full(len(traces), -1)
    training[known] = joined_columns(steps, "thread")[firsts_of(steps)[:-1][known]]
    rank = np.repeat(np.arange(len(traces)), records.counts(Kind.FINALIZE_END))
    ended = records.recorded(Kind.FINALIZE_END, "thread").astype(np.int64)
    finalised = np.bincount(rank[ended == training[rank]], minlength=len(traces)) > 0
    return [
        None
        if span is None
        else (
            by_training,
            trace.device_activity is not None,
            trace.device_activity is not None and trace.device_activity.communication is not None,
        )
        for trace, span, by_training in zip(traces, spans, finalised.tolist(), strict=True)
    ]


def _spans_ns(traces: Sequence[Trace], records: JoinedRecords) -> list[tuple[int, int] | None]:
    """Returns each rank's time span in ns, with a margin; None if the rank cannot be joined."""
    first_ns = np.full(len(traces), np.iinfo(np.int64).max)
    last_ns = np.zeros(len(traces), dtype=np.int64)
    for kind in KINDS:
        count = np.array(records.counts(kind))
        some = np.flatnonzero(count)
        if not len(some):
            continue
        begins = (np.cumsum(count) - count)[some]
        begin_ns = records.recorded(kind, "timestamp_ns").astype(np.int64)
        first_ns[some] = np.minimum(first_ns[some], np.minimum.reduceat(begin_ns, begins))
        last_ns[some] = np.maximum(last_ns[some], np.maximum.reduceat(begin_ns, begins))
        if (kind, "value") in MOMENTS:
            end_ns = records.recorded(kind, "value").astype(np.int64)
            last_ns[some] = np.maximum(last_ns[some], np.maximum.reduceat(end_ns, begins))
    for index, trace in enumerate(traces):
        for ran in trace.device_activity.kinds if trace.device_activity is not None else ():
            if len(ran):
                first_ns[index] = min(first_ns[index], ran.begin_ns[0])
                last_ns[index] = max(last_ns[index], ran.end_ns[-1])
    steps = lengths_of(tables_of(traces, columns.steps))
    return [
        (first - _APART_NS, last + _APART_NS) if 0 < first <= last < 2**61 and count else None
        for count, first, last in zip(steps, first_ns.tolist(), last_ns.tolist(), strict=True)
    ]


def _block(
    place: int,
    traces: Sequence[Trace],
    spans: Sequence[tuple[int, int]],
    of_all: JoinedRecords,
) -> RankBlock | None:
    """Joins ranks to a block; None if they cannot be joined.

    Ranks cannot be joined if only some of them finalised backward passes in the training thread, or
    if shifted ids would be too large.
    """
    length_ns = np.array([until - begin for begin, until in spans])
    begins_ns = np.cumsum(length_ns) - length_ns + _APART_NS
    shift_ns = begins_ns - np.array([begin for begin, _ in spans])
    records = of_all.part(slice(place, place + len(traces)), shift_ns)
    if LARGEST in (records.operation_shift[-1], records.pass_shift[-1]):
        return None
    source = replace(traces[0], records=cast("Records", records))
    steps = tables_of(traces, columns.steps)
    first_step = firsts_of(steps)
    threads = joined_columns(steps, "thread")[first_step[:-1]]
    count_steps = lengths_of(steps)
    passes = columns.finalizations(source)
    cuts = np.searchsorted(passes.span.begin_ns, begins_ns)
    count_passes = np.diff(np.append(cuts, len(passes.span))).tolist()
    by_training = passes.span.thread == np.repeat(threads, count_passes)
    finalised = np.add.reduceat(np.append(by_training, False), cuts) * (np.array(count_passes) > 0)
    if 0 < np.count_nonzero(finalised) < len(traces):
        return None
    ranks = _Ranks(traces, threads, shift_ns, records.operation_shift, records.pass_shift)
    trace = replace(traces[0], records=columns.NO_RECORDS, summary=None, passes=None, recorded=None)
    index, begin_ns, end_ns = (
        joined_columns(steps, name) for name in ("index", "begin_ns", "end_ns")
    )
    moved_ns = np.repeat(shift_ns, count_steps)
    in_training = np.full(len(index), _TRAINING)
    keep(
        trace,
        columns.steps,
        Steps(index, begin_ns + moved_ns, end_ns + moved_ns, in_training, source=steps[0].source),
    )
    activities = [trace.device_activity for trace in traces if trace.device_activity is not None]
    if activities:  # the block keeps only the times by step: the joined activity would be large
        activity = DeviceActivity.joined(activities, shift_ns)
        keep(trace, device_times, times_in_steps(activity, columns.steps(trace)))
    phases, count = columns.phases(source), records.counts(Kind.PHASE)
    keep(trace, columns.phases, ranks.of_block(phases, count))
    keep_rows(traces, columns.phases, ranks.as_recorded(phases, count), count)
    # Only the block gets these tables: a rank makes its own tables when they are needed.
    for make, kind in (
        (columns.waits, Kind.WAIT),
        (columns.pauses, Kind.PAUSE),
        (columns.run_delays, Kind.RUN_DELAY),
    ):
        keep(trace, make, ranks.of_block(make(source), records.counts(kind)))
    keep(trace, columns.helpers_cpu, _helpers_cpu(traces, records, columns.run_delays(trace)))
    span = ranks.of_block(passes.span, count_passes)
    keep(trace, columns.finalizations, replace(passes, span=span))
    span = ranks.as_recorded(passes.span, count_passes)
    span = replace(span, key=span.key - np.repeat(ranks.task_shift, count_passes))
    own = Finalizations(span, passes.blocked_ns, passes.no_core_ns)
    keep_rows(traces, columns.finalizations, own, count_passes)
    counters, count = columns.host_counts(source), records.counts(Kind.HOST_COUNTS)
    of_block = {name: ranks.of_block(spans_, count) for name, spans_ in counters.items()}
    keep(trace, columns.host_counts, of_block)
    count_calls = records.counts(Kind.ISSUE)
    own_calls = ranks.calls(columns.collectives(source), count_calls)
    keep_rows(traces, columns.collectives, own_calls, count_calls)
    return RankBlock(
        place,
        trace,
        begins_ns,
        shift_ns,
        ranks.task_shift,
        ranks.call_shift,
        threads,
        np.cumsum([0, *count_calls]),
        first_step,
        tables_of(traces, columns.collectives),
    )


def _helpers_cpu(traces: Sequence[Trace], records: JoinedRecords, delays: Spans) -> Spans:
    """Like ``columns.helpers_cpu``, but the ranks may differ in their intra-op threads."""
    alone = np.array(list(map(columns.has_one_thread, traces)))
    cpu_ns = columns.ints(records.column(Kind.RUN_DELAY, "bytes_out"))
    return replace(delays, key=np.repeat(alone, records.counts(Kind.RUN_DELAY)) * cpu_ns)


@dataclass(frozen=True)
class _Ranks:
    traces: Sequence[Trace]
    threads: Ints
    shift_ns: Ints
    call_shift: Ints
    task_shift: Ints

    def as_recorded(self, spans: Spans, count: Sequence[int] | Ints) -> Spans:
        """Undoes the shift of times."""
        return shifted(spans, -np.repeat(self.shift_ns, count))

    def of_block(self, spans: Spans, count: Sequence[int] | Ints) -> Spans:
        thread = _block_threads(spans.thread, np.repeat(self.threads, count))
        return replace(spans, thread=thread)

    def calls(self, calls: Collectives, count: Sequence[int] | Ints) -> Collectives:
        """Undoes the shifts of times and ids."""
        passes, task = calls.graph_task, np.repeat(self.task_shift, count)
        return replace(
            shifted(calls, -np.repeat(self.shift_ns, count)),
            op_id=calls.op_id - np.repeat(self.call_shift, count),
            graph_task=np.where(passes >= 0, passes - task, passes),
        )


def _block_threads(thread: Ints, training: Ints) -> Ints:
    return np.where(thread == training, _TRAINING, _OTHER)


def joined_tables(tables: Sequence[Table]) -> Table:
    """Joins the rows of several tables to one table."""
    return map_columns(lambda *columns_: joined_column(columns_), *tables)
