"""Steps, phases, waiting and collectives of all ranks on one time axis, to be drawn.

A collective's time in flight falls into four parts, in the words of Horovod's timeline
(docs/timeline.rst of horovod/horovod: NEGOTIATE_ALLREDUCE, QUEUE, WAIT_FOR_DATA, the operation):

    negotiate: from this rank's issue until the last rank's issue: not everybody is ready
    queue:     then, until gloo begins to run it here
    wait:      then, until it runs on the last rank
    wire:      from there to its completion here

c10d does not negotiate: a rank that is early sits inside the collective. Horovod waits for the
data that the GPU still computes, here the wait is for the last rank to begin. The parts add up to
the time from issue to completion. The table of the collectives cuts it differently: its
queue is all of the time until the start here, and its wait is what follows until the last start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from commprof.analysis.bandwidth import sizes_bytes
from commprof.analysis.calls import group_sizes
from commprof.analysis.exposure import Exposures
from commprof.analysis.matching import Matching, match
from commprof.analysis.measured import MeasuredWorld
from commprof.analysis.queueing import start_times
from commprof.trace import columns
from commprof.trace.columns import Collectives, Ints, Steps
from commprof.trace.reader import Trace
from commprof.trace.schema import OPS, PHASES

Columns = TypeVar("Columns", "Stretches", "Flights")
#: Of ``Flights.negotiate_ns`` where the time in flight cannot be split: all is in ``wire_ns``.
UNSPLIT = -1


@dataclass(frozen=True)
class CallKind:
    """What calls have in common that look alike."""

    op: str
    group: str
    dtype: str
    #: As nccl-tests counts it.
    size_bytes: int


@dataclass(frozen=True)
class Stretches:
    """Stretches of the training thread's time."""

    #: Row of the step among the measured ones.
    step: Ints
    #: Phase code, or 0.
    code: Ints
    begin_ns: Ints
    end_ns: Ints


@dataclass(frozen=True)
class Flights:
    """Collectives of one rank, in order of issue."""

    step: Ints
    #: Number in ``Timeline.kinds``.
    kind: Ints
    #: The same on all ranks for one collective.
    collective: Ints
    issue_ns: Ints
    #: ``UNSPLIT`` where the parts are not known.
    negotiate_ns: Ints
    queue_ns: Ints
    wait_ns: Ints
    wire_ns: Ints

    @property
    def duration_ns(self) -> Ints:
        """Issue to completion."""
        split = np.where(self.negotiate_ns == UNSPLIT, 0, self.negotiate_ns)
        total: Ints = split + self.queue_ns + self.wait_ns + self.wire_ns
        return total


@dataclass(frozen=True)
class RankTimeline:
    """One rank; times by the clock that the ranks have in common."""

    rank: int
    steps: Stretches
    phases: Stretches
    #: The training thread stood still for communication.
    waiting: Stretches
    flights: Flights


@dataclass(frozen=True)
class Timeline:
    """All ranks of one world size over measured steps."""

    #: Numbers of the steps that are here, of ``measured_steps`` in all.
    steps: Ints
    measured_steps: int
    kinds: tuple[CallKind, ...]
    ranks: tuple[RankTimeline, ...]
    #: Whether times of different ranks can be compared.
    clocks_shared: bool
    #: Spans that belong to these steps and are not here, since one step alone had too many.
    left_out: int = 0
    #: Names of ``Stretches.code`` of phases.
    phases: tuple[str, ...] = PHASES

    @property
    def spans(self) -> int:
        """Number of stretches and collectives here."""
        return int(self._by_step().sum())

    def middle(self, most_spans: int) -> Timeline:
        """As many steps from the middle of the run, without a gap, as have room; at least one."""
        count, by_step = len(self.steps), self._by_step()
        if int(by_step.sum()) <= most_spans or count == 0:
            return self
        middle = first = count // 2
        end, total = first + 1, int(by_step[first])
        while True:
            # Steps on that side so far, the window with one more, and the spans of that one.
            ways = [(middle - first, first - 1, end, int(by_step[first - 1]))] if first else []
            ways += [(end - middle, first, end + 1, int(by_step[end]))] if end < count else []
            fitting = [way for way in ways if total + way[3] <= most_spans]
            if not fitting:
                break
            _, first, end, more = min(fitting)
            total += more
        chosen = self._within(first, end)
        return chosen if total <= most_spans else chosen._first(most_spans)

    def _by_step(self) -> Ints:
        rows = [part.step for rank in self.ranks for part in _parts(rank)]
        joined = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
        return np.bincount(joined, minlength=len(self.steps)).astype(np.int64)

    def _within(self, first: int, end: int) -> Timeline:
        def cut(part: Columns) -> Columns:
            kept = _rows(part, (part.step >= first) & (part.step < end))
            return replace(kept, step=kept.step - first)

        return replace(
            self, steps=self.steps[first:end], ranks=tuple(_each(rank, cut) for rank in self.ranks)
        )

    def _first(self, most_spans: int) -> Timeline:
        """Of one step with too many spans the first of every rank's."""
        share = max(1, most_spans // max(1, 4 * len(self.ranks)))

        def cut(part: Columns) -> Columns:
            return _rows(part, np.arange(len(part.step)) < share)

        kept = replace(self, ranks=tuple(_each(rank, cut) for rank in self.ranks))
        return replace(kept, left_out=self.spans - kept.spans)


def timeline(seen: MeasuredWorld) -> Timeline:
    """All measured steps of one world size."""
    matching = match(seen.traces, seen.tables)
    flights, kinds = _flights(seen, matching)
    ranks = []
    for rank, trace, found, flown in zip(
        seen.ranks, seen.traces, seen.exposed, flights, strict=True
    ):
        steps = _measured_steps(trace, seen.measured[0].step)
        ranks.append(
            RankTimeline(
                rank=rank,
                steps=_whole_steps(steps),
                phases=_phases(trace, steps),
                waiting=_waiting(found, steps),
                flights=_in_steps(flown, flown.issue_ns, steps),
            )
        )
    return Timeline(
        steps=seen.measured[0].step,
        measured_steps=len(seen.measured[0].step),
        kinds=kinds,
        ranks=tuple(ranks),
        clocks_shared=seen.clocks_shared,
    )


def _flights(seen: MeasuredWorld, matching: Matching) -> tuple[list[Flights], tuple[CallKind, ...]]:
    """Of each rank, before any is left out; ``step`` is not set yet."""
    tables, traces = seen.tables, seen.traces
    size = np.concatenate([_sizes(*each) for each in zip(traces, tables, strict=True)])
    op, dtype = _joined(tables, "op"), _joined(tables, "dtype")
    keys = np.stack([op, matching.group, dtype, size], axis=1)
    distinct, kind = np.unique(keys, axis=0, return_inverse=True)
    dtypes = traces[0].metadata["dtypes"]
    kinds = tuple(
        CallKind(
            op=OPS[code] if code < len(OPS) else "",
            group=matching.groups[group].name if group >= 0 else "",
            dtype=dtypes[type_code] if type_code < len(dtypes) and bytes_ else "",
            size_bytes=bytes_,
        )
        for code, group, type_code, bytes_ in distinct.tolist()
    )
    issue = _joined(tables, "issue_ns")
    split = matching.split
    parts = [split(part) for part in _flight_parts(seen, matching, issue)]
    kind_of, member, issued = (split(x) for x in (kind.reshape(-1), matching.member, issue))
    flights = [
        Flights(np.zeros(len(issued[i]), dtype=np.int64), kind_of[i], member[i], issued[i], *four)
        for i, four in enumerate(zip(*parts, strict=True))
    ]
    return [_rows(each, each.wire_ns >= 0) for each in flights], kinds


def _flight_parts(seen: MeasuredWorld, matching: Matching, issue: Ints) -> tuple[Ints, ...]:
    """Negotiate, queue, wait and wire per row; wire is -1 where no end was seen."""
    end = _joined(seen.tables, "end_ns")
    exact = np.concatenate([table.end_is_exact for table in seen.tables])
    start = np.concatenate(
        [start_times(trace, table) for trace, table in zip(seen.traces, seen.tables, strict=True)]
    )
    last_issue, _ = matching.latest(issue)
    last_start, _ = matching.latest(start)
    started = matching.every(start > 0)
    ready = np.clip(last_issue, issue, np.maximum(end, issue))
    here = np.where(started, np.clip(start, ready, np.maximum(end, ready)), ready)
    there = np.where(started, np.clip(last_start, here, np.maximum(end, here)), here)
    known = exact & (end >= issue) & (last_issue > 0) & seen.clocks_shared
    flown = np.where(end >= issue, end - issue, -1)
    return (
        np.where(known, ready - issue, UNSPLIT),
        np.where(known, here - ready, 0),
        np.where(known, there - here, 0),
        np.where(known, end - there, flown),
    )


def _measured_steps(trace: Trace, measured: Ints) -> Steps:
    steps = columns.steps(trace)
    chosen = np.isin(steps.index, measured)
    return Steps(
        steps.index[chosen], steps.begin_ns[chosen], steps.end_ns[chosen], steps.thread[chosen]
    )


def _whole_steps(steps: Steps) -> Stretches:
    count = len(steps)
    return Stretches(
        np.arange(count), np.zeros(count, dtype=np.int64), steps.begin_ns, steps.end_ns
    )


def _phases(trace: Trace, steps: Steps) -> Stretches:
    spans = columns.phases(trace)
    mine = spans.thread == (steps.thread[0] if len(steps) else -1)
    found = Stretches(spans.key, spans.key, spans.begin_ns, spans.end_ns)
    found = _rows(found, mine)
    return _in_steps(found, found.begin_ns, steps)


def _waiting(found: Exposures, steps: Steps) -> Stretches:
    none = np.zeros(len(found), dtype=np.int64)
    stretches = Stretches(none, none, found.begin_ns, found.end_ns)
    return _in_steps(stretches, found.begin_ns, steps)


def _in_steps(part: Columns, at_ns: Ints, steps: Steps) -> Columns:
    """The rows that begin within one of the steps, with the step's row."""
    if len(steps) == 0:
        return _rows(part, np.zeros(len(at_ns), dtype=np.bool_))
    row = np.searchsorted(steps.begin_ns, at_ns, side="right") - 1
    inside = (row >= 0) & (at_ns < steps.end_ns[np.maximum(row, 0)])
    return replace(_rows(part, inside), step=row[inside].astype(np.int64))


def _rows(part: Columns, chosen: npt.NDArray[np.bool_]) -> Columns:
    return type(part)(**{f.name: getattr(part, f.name)[chosen] for f in fields(part)})


def _parts(rank: RankTimeline) -> tuple[Stretches | Flights, ...]:
    return rank.steps, rank.phases, rank.waiting, rank.flights


class _Cut(Protocol):
    """The same cut for all parts of a rank."""

    def __call__(self, part: Columns, /) -> Columns: ...


def _each(rank: RankTimeline, cut: _Cut) -> RankTimeline:
    return RankTimeline(
        rank.rank, cut(rank.steps), cut(rank.phases), cut(rank.waiting), cut(rank.flights)
    )


def _sizes(trace: Trace, table: Collectives) -> Ints:
    return sizes_bytes(table.op, table.bytes_in, table.bytes_out, group_sizes(trace, table))


def _joined(tables: Sequence[Collectives], name: str) -> Ints:
    return np.concatenate([getattr(table, name) for table in tables])
