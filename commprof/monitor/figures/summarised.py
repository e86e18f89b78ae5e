"""Computes totals and recent figures of a job in always-on mode from the ranks' summaries.

A summary holds totals since always-on mode began. Recent figures are the difference between the
newest summary and a summary that is about a minute older.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from commprof.analysis.summaries import SummaryPart, late_rank_of, share_a_clock
from commprof.monitor.state import Late, OperationState, StepTimes
from commprof.trace.schema import Phase
from commprof.trace.summary import (
    Histogram,
    OperationSummary,
    Summary,
    mean_ns,
    merged_histogram,
    quantile_ns,
)
from commprof.units import ns_to_s

_RECENT_NS: Final = 60_000_000_000
#: Least time between two kept summaries; ranks write a summary every second.
_APART_NS: Final = 5_000_000_000
_NOTHING: Final = merged_histogram([])
_NO_CELLS: Final = np.empty((0, 3), dtype=np.int64)


class Summaries:
    """The summaries that one rank wrote in always-on mode."""

    def __init__(self) -> None:
        #: Summaries of about the last minute, newest last.
        self._kept: deque[Summary] = deque()
        #: The recent steps begin after this summary; None if all steps are recent.
        self._steps_after: Summary | None = None

    def add(self, summary: Summary) -> None:
        """Adds a summary, unless it was added before."""
        if self._kept and summary.sequence <= self._kept[-1].sequence:
            return
        if self._kept and _began_anew(summary, self._kept[-1]):
            self._kept.clear()
            self._steps_after = None
        summary = _with_unsplit(summary, self.newest)
        if len(self._kept) > 1 and self._kept[-1].end_ns < self._kept[-2].end_ns + _APART_NS:
            self._kept.pop()
        elif self._kept:
            self._kept[-1] = _past(self._kept[-1])
        self._kept.append(summary)
        while len(self._kept) > 2 and self._kept[1].end_ns <= summary.end_ns - _RECENT_NS:
            self._kept.popleft()
        if self._kept[0].steps.count < summary.steps.count:
            self._steps_after = self._kept[0]

    @property
    def total(self) -> StepTimes | None:
        """Sums of times over all steps except the first one; None without steps."""
        if not self._kept or not self._kept[-1].steps.count:
            return None
        newest = self._kept[-1]
        return _times(newest, newest.steps.count)

    @property
    def recent(self) -> StepTimes | None:
        """Mean times of recent steps; None without steps.

        If no step ended in the last minute, the recent steps are the last steps before it.
        """
        newest, before = self.newest, self._steps_after
        if newest is None:
            return None
        steps = newest.steps.count - (before.steps.count if before else 0)
        if steps == 0:
            return None
        total = _times(newest, 1)
        first = _times(before, 1) if before else None
        parts = [
            (getattr(total, name) - (getattr(first, name) if first else 0.0)) / steps
            for name in StepTimes.__dataclass_fields__
            if name != "steps"
        ]
        return StepTimes(steps, *parts)

    def operations(self, names: Sequence[str]) -> dict[str, OperationState]:
        """Returns figures by operation; ``names[n]`` is the operation with code n."""
        newest, before = self._ends()
        if newest is None:
            return {}
        now, then = _by_op(newest.operations), _by_op(before.operations if before else ())
        return {
            names[op] if op < len(names) else f"#{op}": _operation(parts, then.get(op, []))
            for op, parts in now.items()
        }

    def waited_for_ns(self) -> dict[int, int]:
        """Returns the total time that this rank waited for each other rank."""
        waited_ns: dict[int, int] = {}
        for _, rank, waited in self._kept[-1].waited_for.cells.tolist() if self._kept else ():
            waited_ns[rank] = waited_ns.get(rank, 0) + waited
        return waited_ns

    @property
    def newest(self) -> Summary | None:
        """The newest summary; None before the first."""
        return self._kept[-1] if self._kept else None

    def _ends(self) -> tuple[Summary | None, Summary | None]:
        if not self._kept:
            return None, None
        return self._kept[-1], self._kept[0] if len(self._kept) > 1 else None


def late_in(world_size: int, parts: Sequence[SummaryPart]) -> Late | None:
    """Finds the late rank from the ranks' summaries; None if no rank is late."""
    late = late_rank_of(world_size, parts, share_a_clock(parts)) if parts else None
    if late is None:
        return None
    return Late(late.rank, late.wait_ms / 1e3, late.phase, late.waiting_ranks)


def difference(newer: Histogram, older: Histogram) -> Histogram:
    """Returns the histogram of the values added since ``older``.

    Minimum and maximum are those of ``newer``.
    """
    counts = np.zeros(int(newer.buckets[-1]) + 1 if newer.count else 0, dtype=np.int64)
    counts[newer.buckets] = newer.counts
    inside = older.buckets < len(counts)
    counts[older.buckets[inside]] -= older.counts[inside]
    counts = np.maximum(0, counts)
    buckets = np.flatnonzero(counts).astype(np.int64)
    return Histogram(
        count=int(counts.sum()),
        sum_ns=max(0, newer.sum_ns - older.sum_ns),
        min_ns=newer.min_ns,
        max_ns=newer.max_ns,
        buckets=buckets,
        counts=counts[buckets],
    )


def _past(summary: Summary) -> Summary:
    """Returns a summary without the histograms that recent figures do not need.

    This saves memory, because about a dozen summaries are kept for each rank.
    """
    operations = [
        replace(operation, wait=_NOTHING, until_last=_NOTHING, transfer=_NOTHING)
        for operation in summary.operations
    ]
    return replace(
        summary,
        steps=_summed_only(summary.steps),
        exposed=_summed_only(summary.exposed),
        phases=tuple(map(_summed_only, summary.phases)),
        arrival_clock_error=_NOTHING,
        exposed_wait=_summed_only(summary.exposed_wait),
        exposed_transfer=_summed_only(summary.exposed_transfer),
        last=(),
        waited_for=replace(summary.waited_for, cells=_NO_CELLS),
        operations=tuple(operations),
    )


def _summed_only(histogram: Histogram) -> Histogram:
    return replace(histogram, buckets=_NOTHING.buckets, counts=_NOTHING.counts)


def _began_anew(summary: Summary, before: Summary) -> bool:
    """True if steps end at other marks than in ``before``, or are counted from 0 again.

    ``before`` is the rank's previous summary.
    """
    other_marks = summary.steps_end != before.steps_end
    return other_marks or summary.steps.count < before.steps.count


def _with_unsplit(summary: Summary, before: Summary | None) -> Summary:
    """Estimates ``unsplit_ns`` if an older version wrote the summary without this value.

    The estimate is at least the value of ``before``, because a total must not fall.
    """
    if summary.unsplit_ns is not None:
        return summary
    split_ns = summary.exposed_wait.sum_ns + summary.exposed_transfer.sum_ns
    least_ns = (before.unsplit_ns or 0) if before is not None else 0
    return replace(summary, unsplit_ns=max(least_ns, summary.exposed.sum_ns - split_ns))


def _times(summary: Summary, steps: int) -> StepTimes:
    """Returns a summary's sums over all steps.

    ``steps`` only sets the field ``steps`` of the result; it does not change the sums.
    """
    phases = summary.phases
    exposed, wait, transfer = (
        histogram.sum_ns
        for histogram in (summary.exposed, summary.exposed_wait, summary.exposed_transfer)
    )
    return StepTimes(
        steps=steps,
        step_s=ns_to_s(summary.steps.sum_ns),
        data_s=ns_to_s(phases[Phase.DATA].sum_ns),
        forward_s=ns_to_s(phases[Phase.FORWARD].sum_ns),
        backward_s=ns_to_s(phases[Phase.BACKWARD].sum_ns),
        optimizer_s=ns_to_s(phases[Phase.OPTIMIZER].sum_ns),
        other_s=ns_to_s(phases[Phase.OTHER].sum_ns),
        exposed_s=ns_to_s(exposed),
        wait_s=ns_to_s(wait),
        transfer_s=ns_to_s(transfer),
        unsplit_s=ns_to_s(summary.unsplit_ns or 0),
        hidden_s=math.nan,
    )


def _by_op(operations: Sequence[OperationSummary]) -> dict[int, list[OperationSummary]]:
    by_op: dict[int, list[OperationSummary]] = {}
    for operation in operations:
        by_op.setdefault(operation.op, []).append(operation)
    return by_op


def _operation(now: Sequence[OperationSummary], then: Sequence[OperationSummary]) -> OperationState:
    total = merged_histogram(part.duration for part in now)
    since = difference(
        total, merged_histogram(part.duration for part in then) if then else _NOTHING
    )
    return OperationState(
        calls=sum(part.count for part in now),
        bytes=sum(part.bytes for part in now),
        timed_calls=total.count,
        timed_s=ns_to_s(total.sum_ns),
        recent_mean_s=ns_to_s(mean_ns(since)),
        recent_p50_s=ns_to_s(quantile_ns(since, 0.5)),
        recent_p99_s=ns_to_s(quantile_ns(since, 0.99)),
    )
