"""Cycles of one rank's measured DDP steps: ready times of buckets, and end of backward.

In a finalisation, at the end of backward, DDP waits for its buckets. A cycle lasts from the end of
one finalisation to the end of the next one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from commprof.analysis.step.exposure import exposures_of
from commprof.trace import columns
from commprof.trace.columns import Ints
from commprof.trace.lookup import row_containing
from commprof.trace.reader import Trace
from commprof.trace.schema import OPS, POINT_TO_POINT, Kind, Phase, op_name


@dataclass(frozen=True)
class Cycle:
    """One step of one rank; times in ns on the trace's clock."""

    step: int
    #: End of the previous finalisation.
    begin_ns: int
    #: Begin of the backward phase; NaN if none was recorded.
    backward_ns: float
    #: For each bucket, in order of issue: ready time, end and bytes.
    ready_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    bytes: tuple[int, ...]
    #: Begin and end of the finalisation.
    finalize_ns: tuple[int, int]
    #: Time in the finalisation during which the thread was blocked.
    blocked_ns: int
    #: Time that the thread waits for collectives without gradients, before the first bucket is
    #: ready.
    other_wait_ns: float
    #: CPU time of the thread divided by wall time, before the finalisation; NaN if unknown.
    cpu_share: float


@dataclass(frozen=True)
class OtherCall:
    """Collectives of one operation and size that exchange no gradients.

    The training thread waits for these collectives.
    """

    op: str
    size_bytes: int
    per_step: float


def cycles(trace: Trace, measured_steps: Ints) -> list[Cycle]:
    """Returns the cycles of measured steps that have exactly one DDP finalisation and a bucket.

    A step is left out if the previous step has no finalisation.
    """
    steps = columns.steps(trace)
    if len(steps) == 0:
        return []
    found, buckets = columns.finalizations(trace), _buckets(trace)
    mine = np.flatnonzero(found.span.thread == steps.thread[0])
    mine = mine[np.argsort(found.span.begin_ns[mine], kind="stable")]
    row = row_containing(steps.begin_ns, steps.end_ns, found.span.begin_ns[mine])
    step = np.append(steps.index, -1)[row]
    cpu = cpu_times(trace)
    phases = columns.phases(trace)
    backward = phases.begin_ns[phases.key == Phase.BACKWARD]
    waits = exposures_of(trace)
    outside = waits.graph_task < 0
    wait_at, wait_ns = waits.begin_ns[outside], waits.waited_ns[outside]
    result = []
    for i in _following(step, measured_steps).tolist():
        begin, current = int(found.span.end_ns[mine[i - 1]]), int(mine[i])
        window = (int(found.span.begin_ns[current]), int(found.span.end_ns[current]))
        ready, end, size = buckets.of(int(found.span.key[current]), begin, window[1])
        if len(ready) == 0:
            continue
        before = slice(*np.searchsorted(wait_at, (begin, ready[0])))
        used = cpu.get(window[0], 0) - cpu.get(begin, 0)
        known = window[0] in cpu and begin in cpu
        result.append(
            Cycle(
                step=int(step[i]),
                begin_ns=begin,
                backward_ns=_last_before(backward, int(ready[0]), begin),
                ready_ns=tuple(ready.tolist()),
                end_ns=tuple(end.tolist()),
                bytes=tuple(size.tolist()),
                finalize_ns=window,
                blocked_ns=int(found.blocked_ns[current]),
                other_wait_ns=float(wait_ns[before].sum()),
                cpu_share=used / max(1, window[0] - begin) if known else float("nan"),
            )
        )
    return result


def other_calls(trace: Trace, measured_steps: Ints) -> tuple[OtherCall, ...]:
    """Counts the awaited collectives that exchange no gradients, by operation and size."""
    table, steps = columns.collectives(trace), columns.steps(trace)
    waits = exposures_of(trace)
    rows = np.unique(waits.collective[(waits.graph_task < 0) & (waits.collective >= 0)])
    rows = rows[(table.graph_task[rows] < 0) & ~np.isin(table.op[rows], POINT_TO_POINT)]
    at = row_containing(steps.begin_ns, steps.end_ns, table.issue_ns[rows])
    rows, at = rows[at >= 0], at[at >= 0]
    rows = rows[np.isin(steps.index[at], measured_steps)]
    size = np.maximum(table.bytes_in[rows], table.bytes_out[rows])
    kinds = Counter(zip(table.op[rows].tolist(), size.tolist(), strict=True))
    return tuple(
        OtherCall(op_name(op), each, times / len(measured_steps))
        for (op, each), times in sorted(kinds.items())
    )


def _following(step: Ints, measured_steps: Ints) -> Ints:
    """Returns the indices of the finalisations that end a cycle.

    ``step`` holds the step of each finalisation, in order of time; -1 outside of all steps.
    """
    _, place, times = np.unique(step, return_inverse=True, return_counts=True)
    follows = (step[:-1] >= 0) & (step[1:] == step[:-1] + 1)
    chosen = follows & (times[place[1:]] == 1) & np.isin(step[1:], measured_steps)
    return 1 + np.flatnonzero(chosen)


class _Buckets(NamedTuple):
    """All buckets of one rank, in order of issue."""

    ready_ns: Ints
    end_ns: Ints
    bytes: Ints
    #: Backward pass of each bucket; None if it was not recorded.
    graph_task: Ints | None

    def of(self, task: int, begin_ns: int, end_ns: int) -> tuple[Ints, Ints, Ints]:
        """Returns ready times, ends and bytes of a pass's buckets that became ready in a window."""
        rows = np.arange(*np.searchsorted(self.ready_ns, (begin_ns, end_ns)))
        if self.graph_task is not None:
            rows = rows[self.graph_task[rows] == task]
        return self.ready_ns[rows], self.end_ns[rows], self.bytes[rows]


def _buckets(trace: Trace) -> _Buckets:
    hooked, table = columns.buckets(trace), columns.collectives(trace)
    if hooked.end_ns.any():  # on a device, no ends of buckets are recorded
        return _Buckets(hooked.ready_ns, hooked.end_ns, hooked.bytes, None)
    rows = np.flatnonzero(table.op == OPS.index("all_reduce"))
    return _Buckets(
        table.issue_ns[rows], table.end_ns[rows], table.bytes_in[rows], table.graph_task[rows]
    )


def _last_before(times_ns: Ints, limit_ns: int, least_ns: int) -> float:
    """Returns the last of the ascending times from ``least_ns`` to ``limit_ns``; NaN if none."""
    found = int(np.searchsorted(times_ns, limit_ns, "right")) - 1
    is_known = found >= 0 and times_ns[found] >= least_ns
    return float(times_ns[found]) if is_known else float("nan")


def cpu_times(trace: Trace) -> dict[int, int]:
    """Returns the thread's CPU time at each finalisation's begin and end, by timestamp, in ns."""
    ends = np.isin(trace.records["kind"], (Kind.FINALIZE_BEGIN, Kind.FINALIZE_END))
    records = trace.records.compress(ends)
    times, values = records["timestamp_ns"].tolist(), records["value"].tolist()
    return dict(zip(times, values, strict=True))
