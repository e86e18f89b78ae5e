"""Finds steps that hold several iterations.

If a script marks no steps, each update of the parameters ends a step. An iteration without an
update is then counted as a part of the next step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commprof.trace import columns
from commprof.trace.columns import Collectives, Ints, tables_of
from commprof.trace.found_steps import UPDATE, communicating_backwards
from commprof.trace.ranks import RankTimes, firsts_of, joined, lengths_of, of_tables, ranks_of
from commprof.trace.reader import Trace
from commprof.trace.schema import Phase


def merged_steps(traces: Sequence[Trace], tables: Sequence[Collectives] | None = None) -> set[int]:
    """Returns the indices of the steps that hold several iterations on some rank.

    Such a step holds m >= 2 times the usual number of communicating backward passes, but fewer than
    m times the usual number of updates. A number is usual if more than half of the rank's steps
    have it. A rank without usual numbers has no such steps.

    Args:
        traces: traces of the ranks.
        tables: collectives of the ranks; None to search the records instead.
    """
    every = tables_of(traces, columns.steps)
    sources = of_tables(every, "source")
    detected = [
        number
        for number, (source, count) in enumerate(zip(sources, lengths_of(every), strict=True))
        if source == UPDATE and count
    ]
    if not detected:
        return set()
    traces = [traces[number] for number in detected]
    steps, phases = tables_of(traces, columns.steps), tables_of(traces, columns.phases)
    first_step = firsts_of(steps)
    rank_of_step = ranks_of(first_step)
    begin_ns, end_ns = (joined(steps, name) for name in ("begin_ns", "end_ns"))
    thread = joined(steps, "thread")[first_step[:-1]]
    rank = ranks_of(firsts_of(phases))
    key, in_training = joined(phases, "key"), joined(phases, "thread") == thread[rank]
    times = RankTimes.of(len(traces), (rank_of_step, begin_ns), (rank_of_step, end_ns))
    bounds = times.key(rank_of_step, begin_ns), times.key(rank_of_step, end_ns)

    def counted(rank_of_event: Ints, ended_ns: Ints) -> Ints:
        """Counts the events in each step; an event at the end of a step counts for that step."""
        ends = np.sort(times.key(rank_of_event, ended_ns))
        since, until = (np.searchsorted(ends, bound, side="right") for bound in bounds)
        return (until - since).astype(np.int64)

    updates = np.flatnonzero((key == Phase.OPTIMIZER) & in_training)
    updated = counted(rank[updates], joined(phases, "end_ns")[updates])
    if tables is None:
        of_ranks = [
            communicating_backwards(trace.records, number)
            for trace, number in zip(traces, thread.tolist(), strict=True)
        ]
        passes = counted(ranks_of(firsts_of(of_ranks)), np.concatenate(of_ranks))
    else:
        backward = np.flatnonzero((key == Phase.BACKWARD) & in_training)
        chosen = [tables[number] for number in detected]
        begun_ns, ended_ns = (joined(phases, name)[backward] for name in ("begin_ns", "end_ns"))
        communicated = _communicated(rank[backward], begun_ns, ended_ns, chosen)
        passes = counted(rank[backward][communicated], ended_ns[communicated])
    usual_passes, usual_updates = (
        _usual(count, first_step)[rank_of_step] for count in (passes, updated)
    )
    is_usual = (usual_passes > 0) & (usual_updates > 0)
    ratio = passes // np.maximum(1, usual_passes)
    several = is_usual & (ratio >= 2) & (passes % np.maximum(1, usual_passes) == 0)
    return set(joined(steps, "index")[several & (updated < ratio * usual_updates)].tolist())


def _communicated(rank: Ints, begin_ns: Ints, end_ns: Ints, tables: Sequence[Collectives]) -> Ints:
    """Returns the rows of the backward passes in which autograd issued a collective."""
    of_backward = np.flatnonzero(joined(tables, "graph_task") >= 0)
    rank_of_call = ranks_of(firsts_of(tables))[of_backward]
    issue_ns = joined(tables, "issue_ns")[of_backward]
    times = RankTimes.of(len(tables), (rank, begin_ns), (rank, end_ns), (rank_of_call, issue_ns))
    issued = times.key(rank_of_call, issue_ns)
    first = np.searchsorted(issued, times.key(rank, begin_ns), side="left")
    last = np.searchsorted(issued, times.key(rank, end_ns), side="right")
    return np.flatnonzero(last > first)


def _usual(count: Ints, first: Ints) -> Ints:
    """Returns, by rank, the value that more than half of the rank's counts have, or 0."""
    rank, length = ranks_of(first), np.diff(first)
    if not len(count):
        return np.zeros(len(length), dtype=np.int64)
    ordered = count[np.lexsort((count, rank))]
    middle = ordered[np.minimum(first[:-1] + length // 2, len(ordered) - 1)]
    same = np.bincount(rank[count == middle[rank]], minlength=len(length))
    return np.where(2 * same > length, middle, 0)
