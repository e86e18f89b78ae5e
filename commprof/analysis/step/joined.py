"""Blocks of ranks whose tables follow one another, as if one rank had run for all of their time.

What is computed for one rank takes hundreds of numpy calls, which cost more than their work while a
rank has a few thousand records. So a block of ranks is computed as one: its times are those of its
ranks, moved apart, so that no interval of one rank touches another's; its backward passes and
operations are numbered apart too. Results have a row per step, interval or call, and are cut into
the ranks' again.

A block ends before its times are so long that their sums lose digits in a float. A rank that cannot
be joined is a block of its own, with its own trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.arrivals import Arrivals, BucketArrivals
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
)
from commprof.trace.lookup import joined_column
from commprof.trace.reader import Trace

Column = npt.NDArray[Any]
Table = TypeVar("Table", Collectives, Steps, Spans)

#: Longest block: a sum of so many ns is exact to 1e-5 ns as a float.
_LONGEST_NS = 2**37
#: Most calls of a block: its columns then fit into a processor's cache.
_MOST_CALLS = 100_000
#: Time between two ranks of a block.
_APART_NS = 1_000_000_000
#: A rank with larger numbers of passes or operations is not joined.
_LARGEST = 2**40
_TRAINING, _OTHER = 1, 2


@dataclass(frozen=True)
class RankBlock:
    """Neighbouring ranks that are computed as one."""

    #: Place of the first rank among all ranks.
    first: int
    #: The tables of all ranks of the block but their calls; of one rank alone, its own trace.
    trace: Trace
    #: By rank: the begin of its times in the block, and what was added to its own times ...
    begins_ns: Ints
    shift_ns: Ints
    #: ... and to its numbers of backward passes and of operations.
    task_shift: Ints
    call_shift: Ints
    #: Training thread of each rank.
    threads: Ints
    #: First row of each rank among the block's calls and steps; last come the numbers of these.
    calls: Ints
    steps: Ints

    def __len__(self) -> int:
        """Number of ranks."""
        return len(self.shift_ns)

    @property
    def places(self) -> slice:
        """Places of the ranks among all ranks."""
        return slice(self.first, self.first + len(self))

    def rank_at(self, time_ns: Ints) -> Ints:
        """Returns which rank of the block, from 0, each of the block's times belongs to."""
        return np.maximum(0, np.searchsorted(self.begins_ns, time_ns, side="right") - 1)

    def arrivals(self, of_ranks: Sequence[Arrivals]) -> Arrivals:
        """Joins the arrivals of the ranks of the block."""
        if len(self) == 1:
            return of_ranks[0]
        buckets = [each.buckets for each in of_ranks]
        count = list(map(len, buckets))
        shift_ns, task = np.repeat(self.shift_ns, count), np.repeat(self.task_shift, count)
        passes = _all(buckets, "graph_task")
        return Arrivals(
            last_arrival_ns=_moved(
                _all(of_ranks, "last_arrival_ns"), np.repeat(self.shift_ns, np.diff(self.calls))
            ),
            late_rank=_all(of_ranks, "late_rank"),
            collective=_all(of_ranks, "collective"),
            buckets=BucketArrivals(
                graph_task=np.where(passes >= 0, passes + task, passes),
                ready_ns=_moved(_all(buckets, "ready_ns"), shift_ns),
                end_ns=_moved(_all(buckets, "end_ns"), shift_ns),
                last_arrival_ns=_moved(_all(buckets, "last_arrival_ns"), shift_ns),
                late_rank=_all(buckets, "late_rank"),
                number=_all(buckets, "number"),
            ),
        )

    def join_calls(self, of_ranks: Sequence[Collectives]) -> Collectives:
        """Joins the calls of the ranks of the block; the block does not keep them."""
        if len(self) == 1:
            return of_ranks[0]
        count = np.diff(self.calls)
        calls = _columns(of_ranks, self.shift_ns, self.threads, None)
        passes = calls["graph_task"]
        calls["op_id"] = calls["op_id"] + np.repeat(self.call_shift, count)
        calls["graph_task"] = np.where(passes >= 0, passes + np.repeat(self.task_shift, count), -1)
        return Collectives(**calls)

    def find_exposures(self, traces: Sequence[Trace], calls: Collectives) -> None:
        """Finds the waiting of all ranks at once, for ``exposures_of`` of the block and of each.

        Args:
            traces: of the ranks.
            calls: their calls, joined.
        """
        if len(self) == 1:
            return
        keep(self.trace, columns.collectives, calls)
        found = exposures_of(self.trace)
        discard(self.trace, columns.collectives)
        rank = self.rank_at(found.begin_ns)
        shift_ns = self.shift_ns[rank]
        whole = Exposures(
            np.where(found.collective >= 0, found.collective - self.calls[rank], -1),
            np.where(found.graph_task >= 0, found.graph_task - self.task_shift[rank], -1),
            found.begin_ns - shift_ns,
            found.end_ns - shift_ns,
            found.waited_ns,
        )
        cuts = np.searchsorted(rank, np.arange(len(self) + 1)).tolist()
        for trace, begin, end in zip(traces, cuts[:-1], cuts[1:], strict=True):
            keep(trace, exposures_of, rows_of(whole, slice(begin, end)))


def joined(traces: Sequence[Trace], tables: Sequence[Collectives]) -> list[RankBlock]:
    """Joins neighbouring ranks to blocks."""
    blocks: list[RankBlock] = []
    spans = [_span_ns(*of_rank) for of_rank in zip(traces, tables, strict=True)]
    place = 0
    while place < len(traces):
        end, length_ns, calls = place, 0, 0
        while end < len(traces) and spans[end] is not None:
            begin_ns, until_ns = spans[end] or (0, 0)
            length_ns += until_ns - begin_ns
            calls += len(tables[end])
            alike = _has_passes(traces[end]) == _has_passes(traces[place])
            if end > place and (length_ns > _LONGEST_NS or calls > _MOST_CALLS or not alike):
                break
            end += 1
        if end - place < 2:
            blocks.append(alone(place, traces[place], tables[place]))
            place += 1
        else:
            some = slice(place, end)
            of_block = [span for span in spans[some] if span is not None]
            blocks.append(_block(place, traces[some], tables[some], of_block))
            place = end
    return blocks


def alone(place: int, trace: Trace, table: Collectives) -> RankBlock:
    """Makes a block of one rank."""
    none = np.zeros(1, dtype=np.int64)
    rows = (np.array([0, len(each)]) for each in (table, columns.steps(trace)))
    return RankBlock(place, trace, none, none, none, none, none, *rows)


def _has_passes(trace: Trace) -> bool:
    """True if the training thread finalised a backward pass, without which figures are unknown."""
    thread = columns.steps(trace).thread[0]
    return bool((columns.finalizations(trace).span.thread == thread).any())


def _span_ns(trace: Trace, table: Collectives) -> tuple[int, int] | None:
    """Returns the first and the last time in a rank's tables; None if it cannot be joined."""
    steps, passes = columns.steps(trace), columns.finalizations(trace)
    if not len(steps) or trace.device_activity is not None:
        return None
    spans: list[Steps | Spans] = [
        steps,
        *(columns.phases(trace), columns.waits(trace), columns.pauses(trace), passes.span),
        *(columns.run_delays(trace), next(iter(columns.host_counts(trace).values()))),
    ]
    begins = [each.begin_ns for each in spans if len(each)] + [table.issue_ns]
    ends = [each.end_ns for each in spans if len(each)] + [table.end_ns]
    first = min(int(each.min(initial=2**62)) for each in begins)
    last = max(int(each.max(initial=0)) for each in (*begins, *ends))
    numbers = (table.op_id, table.graph_task, columns.waits(trace).key, passes.span.key)
    if any(len(each) and not -1 <= each.min() <= each.max() < _LARGEST for each in numbers):
        return None
    return (first - _APART_NS, last + _APART_NS) if 0 < first <= last < 2**61 else None


def _block(
    place: int,
    traces: Sequence[Trace],
    tables: Sequence[Collectives],
    spans: Sequence[tuple[int, int]],
) -> RankBlock:
    length_ns = np.array([until - begin for begin, until in spans])
    begins_ns = np.cumsum(length_ns) - length_ns + _APART_NS
    shift_ns = begins_ns - np.array([begin for begin, _ in spans])
    number = np.arange(len(traces))
    steps = [columns.steps(trace) for trace in traces]
    passes = [columns.finalizations(trace) for trace in traces]
    threads = np.array([int(each.thread[0]) for each in steps])
    task_shift, call_shift = (
        number * (1 + max(int(column.max(initial=0)) for column in columns_))
        for columns_ in (
            [each.graph_task for each in tables] + [each.span.key for each in passes],
            [each.op_id for each in tables] + [columns.waits(trace).key for trace in traces],
        )
    )

    def of(some: Sequence[Table], keys: Ints | None = None) -> dict[str, Any]:
        return _columns(some, shift_ns, threads, keys)

    def spans_of(make: Callable[[Trace], Spans], keys: Ints | None = None) -> Spans:
        return Spans(**of([make(trace) for trace in traces], keys))

    trace = replace(traces[0], records=columns.NO_RECORDS, summary=None, passes=None, recorded=None)
    keep(trace, columns.steps, Steps(**of(steps), source=steps[0].source))
    keep(trace, columns.phases, spans_of(columns.phases))
    keep(trace, columns.waits, spans_of(columns.waits, call_shift))
    keep(trace, columns.pauses, spans_of(columns.pauses))
    keep(trace, columns.run_delays, spans_of(columns.run_delays))
    keep(
        trace,
        columns.finalizations,
        Finalizations(
            Spans(**of([each.span for each in passes], task_shift)),
            _all(passes, "blocked_ns"),
            _all(passes, "no_core_ns"),
        ),
    )
    counts = [columns.host_counts(trace) for trace in traces]
    whole = {name: Spans(**of([each[name] for each in counts])) for name in columns.HOST_COUNTS}
    keep(trace, columns.host_counts, whole)
    return RankBlock(
        place,
        trace,
        begins_ns,
        shift_ns,
        task_shift,
        call_shift,
        threads,
        np.cumsum([0, *map(len, tables)]),
        np.cumsum([0, *map(len, steps)]),
    )


def _columns(
    some: Sequence[Table], shift_ns: Ints, threads: Ints, keys: Ints | None
) -> dict[str, Any]:
    """Joins the columns of the ranks' tables: times and keys moved, and threads told apart."""
    count = list(map(len, some))
    found = {}
    for name in (field.name for field in fields(some[0]) if field.name != "source"):
        column = _all(some, name)
        if name.endswith("_ns"):
            column = _moved(column, np.repeat(shift_ns, count))
        elif name == "thread":
            column = np.where(column == np.repeat(threads, count), _TRAINING, _OTHER)
        elif name == "key" and keys is not None:
            column = column + np.repeat(keys, count)
        found[name] = column
    return found


def _all(some: Sequence[Any], name: str) -> Column:
    return joined_column(getattr(each, name) for each in some)


def _moved(time_ns: Column, shift_ns: Ints) -> Column:
    """Moves times; 0 stands for a time that is not known."""
    return np.where(time_ns > 0, time_ns + shift_ns, time_ns)


def rows_of(table: Any, rows: slice) -> Any:
    """Returns some rows of a table, without a copy."""
    return type(table)(*(getattr(table, field.name)[rows] for field in fields(table)))
