"""Steps, phases, waiting and collectives of all ranks on one time axis, to be drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np

from commprof.analysis.collectives.in_flight import (
    CallKind,
    InFlightIntervals,
    in_flight_intervals,
)
from commprof.analysis.step.exposure import Exposures, exposures_of
from commprof.analysis.step.measured import MeasuredWorld
from commprof.trace import columns
from commprof.trace.columns import Ints, Steps
from commprof.trace.lookup import row_containing, rows_of
from commprof.trace.reader import Trace
from commprof.trace.schema import PHASES

Columns = TypeVar("Columns", "DrawnStretches", "InFlightIntervals")


@dataclass(frozen=True)
class DrawnStretches:
    """Intervals of time on the training thread."""

    #: Index of the step among the timeline's steps.
    step: Ints
    #: Phase code; 0 for intervals that are no phases.
    code: Ints
    begin_ns: Ints
    end_ns: Ints


@dataclass(frozen=True)
class RankTimeline:
    """Timeline of one rank, on the ranks' common clock."""

    rank: int
    steps: DrawnStretches
    phases: DrawnStretches
    #: Intervals in which communication blocked the training thread.
    waiting: DrawnStretches
    in_flight: InFlightIntervals


@dataclass(frozen=True)
class Timeline:
    """Timelines of all ranks of one world size over measured steps."""

    #: Numbers of this timeline's steps, in the order of ``DrawnStretches.step``.
    steps: Ints
    measured_steps: int
    kinds: tuple[CallKind, ...]
    ranks: tuple[RankTimeline, ...]
    #: True if times of different ranks can be compared.
    clocks_shared: bool
    #: Number of spans that are left out, because a single step had too many spans.
    left_out: int = 0
    #: Names of the phases; the index is the phase code.
    phases: tuple[str, ...] = PHASES

    @property
    def spans(self) -> int:
        """Number of intervals and collectives in the timeline."""
        return int(self._by_step().sum())

    def middle(self, most_spans: int) -> Timeline:
        """Returns the timeline of the middle steps, with at most ``most_spans`` spans in total.

        If the middle step alone has more spans, returns only the first spans of that step.
        """
        count, by_step = len(self.steps), self._by_step()
        if int(by_step.sum()) <= most_spans or count == 0:
            return self
        middle = first = count // 2
        end, total = first + 1, int(by_step[first])
        while True:
            # Each way adds one step, before or after the window. It holds the number of steps that
            # are on that side already, the new first step, the new end, and the added spans.
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
        parts = [part.step for rank in self.ranks for part in _parts(rank)]
        joined = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
        return np.bincount(joined, minlength=len(self.steps)).astype(np.int64)

    def _within(self, first: int, end: int) -> Timeline:
        def cut(part: Columns) -> Columns:
            within = rows_of(part, (part.step >= first) & (part.step < end))
            return replace(within, step=within.step - first)

        return replace(
            self, steps=self.steps[first:end], ranks=tuple(_each(rank, cut) for rank in self.ranks)
        )

    def _first(self, most_spans: int) -> Timeline:
        share = max(1, most_spans // max(1, 4 * len(self.ranks)))

        def cut(part: Columns) -> Columns:
            return rows_of(part, np.arange(len(part.step)) < share)

        shortened = replace(self, ranks=tuple(_each(rank, cut) for rank in self.ranks))
        return replace(shortened, left_out=self.spans - shortened.spans)


def timeline(seen: MeasuredWorld) -> Timeline:
    """Makes the timeline of all measured steps of one world size."""
    intervals, kinds = in_flight_intervals(seen)
    ranks = []
    for rank, trace, of_rank in zip(seen.ranks, seen.traces, intervals, strict=True):
        steps = columns.steps(trace).numbered(seen.measured.step)
        ranks.append(
            RankTimeline(
                rank=rank,
                steps=_whole_steps(steps),
                phases=_phases(trace, steps),
                waiting=_waiting(exposures_of(trace), steps),
                in_flight=_in_steps(of_rank, of_rank.issue_ns, steps),
            )
        )
    return Timeline(
        steps=seen.measured.step,
        measured_steps=len(seen.measured.step),
        kinds=kinds,
        ranks=tuple(ranks),
        clocks_shared=seen.clocks_shared,
    )


def _whole_steps(steps: Steps) -> DrawnStretches:
    count = len(steps)
    return DrawnStretches(
        np.arange(count), np.zeros(count, dtype=np.int64), steps.begin_ns, steps.end_ns
    )


def _phases(trace: Trace, steps: Steps) -> DrawnStretches:
    spans = columns.phases(trace)
    mine = spans.thread == (steps.thread[0] if len(steps) else -1)
    stretches_of = DrawnStretches(spans.key, spans.key, spans.begin_ns, spans.end_ns)
    stretches_of = rows_of(stretches_of, mine)
    return _in_steps(stretches_of, stretches_of.begin_ns, steps)


def _waiting(exposures: Exposures, steps: Steps) -> DrawnStretches:
    none = np.zeros(len(exposures), dtype=np.int64)
    stretches = DrawnStretches(none, none, exposures.begin_ns, exposures.end_ns)
    return _in_steps(stretches, exposures.begin_ns, steps)


def _in_steps(part: Columns, at_ns: Ints, steps: Steps) -> Columns:
    """Keeps the rows whose time lies within a step, and sets ``step`` to the step's index."""
    row = row_containing(steps.begin_ns, steps.end_ns, at_ns)
    return replace(rows_of(part, row >= 0), step=row[row >= 0])


def _parts(rank: RankTimeline) -> tuple[DrawnStretches | InFlightIntervals, ...]:
    return rank.steps, rank.phases, rank.waiting, rank.in_flight


class _Cut(Protocol):
    def __call__(self, part: Columns, /) -> Columns: ...


def _each(rank: RankTimeline, cut: _Cut) -> RankTimeline:
    return RankTimeline(
        rank.rank, cut(rank.steps), cut(rank.phases), cut(rank.waiting), cut(rank.in_flight)
    )
