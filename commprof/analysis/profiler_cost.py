"""What commprof's own recording cost at one world size."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from commprof.analysis.step.breakdown import Breakdown
from commprof.analysis.step.measured import MeasuredSteps
from commprof.analysis.step.overhead import Overhead, overhead
from commprof.field_groups import FieldGroup
from commprof.trace import columns
from commprof.trace.packed import records_before
from commprof.trace.run.run_directory import WorldRun


@dataclass(frozen=True)
class ProfilerCost(FieldGroup):
    """Cost of commprof's own recording at one world size."""

    overhead: Overhead | None
    #: Median number of records per step on the first recorded rank.
    records_per_step: float
    #: Cost of one record, measured on the first recorded rank at the end of the run.
    record_cost_ns: float
    #: One entry per step that measures commprof's cost: label (see ``overhead.Samples``), wall time
    #: of the slowest rank in ns, and CPU time of all training threads in ns (NaN if unknown).
    overhead_samples: tuple[tuple[str, float, float], ...]


def profiler_cost(run: WorldRun, seen: MeasuredSteps) -> ProfilerCost:
    """Returns the cost of recording, from ``rank_N.json`` and the first rank's records."""
    labelled, first = _overhead_samples(run), seen.ranks[0]
    return ProfilerCost(
        overhead=overhead(labelled),
        records_per_step=_records_per_step(run, first, seen.measured[0]),
        record_cost_ns=float(run.results.get(first, {}).get("record_cost_ns", math.nan)),
        overhead_samples=labelled,
    )


def _overhead_samples(run: WorldRun) -> tuple[tuple[str, float, float], ...]:
    """Returns ``ProfilerCost.overhead_samples``; empty if a rank left no ``rank_N.json``.

    All ranks switch capture on or off at the same steps, so the entries of the ranks at the same
    position belong together.
    """
    if len(run.results) < run.world_size:
        return ()
    found = []
    accounts = run.results.values()
    per_rank = [result.get("overhead_cpu_ns") for result in accounts]
    for index, rows in enumerate(zip(*(one["overhead"] for one in accounts), strict=False)):
        cpu = [one[index] for one in per_rank if one is not None and index < len(one)]
        total = float(sum(cpu)) if len(cpu) == len(rows) else math.nan
        found.append((str(rows[0][0]), float(max(row[1] for row in rows)), total))
    return tuple(found)


def _records_per_step(run: WorldRun, rank: int, part: Breakdown) -> float:
    trace = run.traces[rank]
    steps = columns.steps(trace)
    chosen = np.isin(steps.index, part.step)
    begin, end = (
        records_before(trace.records, time_ns[chosen].astype(np.uint64))
        for time_ns in (steps.begin_ns, steps.end_ns)
    )
    return float(np.median(end - begin)) if len(begin) else 0.0
