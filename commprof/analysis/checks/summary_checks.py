"""What always-on mode summarised against what others measured of the same time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from commprof.analysis.align import histogram
from commprof.analysis.checks.ddp_log import OfRank, ddp_checks
from commprof.analysis.checks.figure_checks import SAME_TIME, CrossCheck, compared, missing
from commprof.analysis.checks.network_check import network_check
from commprof.analysis.collectives.wire_bytes import all_sent_bytes
from commprof.trace.found_steps import BACKWARD
from commprof.trace.reader import Trace
from commprof.trace.run.run_directory import WorldRun
from commprof.trace.schema import Phase, op_name
from commprof.trace.summary import Summary
from commprof.units import ns_to_ms, ns_to_s

Found = Sequence[tuple[Trace, Summary]]

_ALL_REDUCED = (
    "commprof's is per step, and all that was all-reduced since always-on mode began, by whomever"
)


def summary_checks(run: WorldRun, found: Found) -> tuple[CrossCheck, ...]:
    """The checks of ``cross_checks`` so far as they need no records.

    Args:
        run: of one world size.
        found: its traces that hold a summary.
    """
    traces = [trace for trace, _ in found]
    payload = [all_sent_bytes(trace) for trace in traces]
    return (
        _phases(found),
        _loop_clock(run, found),
        *ddp_checks(traces, lambda i, _: _of_rank(found[i][1])),
        network_check(run.world_size, traces, payload),
    )


def _phases(found: Found) -> CrossCheck:
    """Time that was counted twice would make the parts more than the step."""
    steps = sum(summary.steps.count for _, summary in found)
    wall = sum(summary.steps.sum_ns for _, summary in found)
    parts = sum(
        summary.exposed.sum_ns + sum(phase.sum_ns for phase in summary.phases)
        for _, summary in found
    )
    ours, other = (ns_to_ms(x / steps) if steps else math.nan for x in (wall, parts))
    what = "step against the sum of its parts"
    return compared("phases", what, "ms", ours, other, SAME_TIME, "")


def _loop_clock(run: WorldRun, found: Found) -> CrossCheck:
    """The rank that differs most, of those all of whose steps but the first were summarised."""
    clocks, counts = [], []
    for trace, summary in found:
        result = run.results.get(trace.rank)
        if result is None:
            continue
        own = result["step_ns"][1:]
        if len(own) != summary.steps.count:
            counts.append((trace.rank, summary.steps.count, len(own)))
            continue
        clocks.append((trace.rank, float(summary.steps.sum_ns), float(sum(own))))
    name, what = "loop_clock", "steps by the loop's own clock"
    if not clocks:
        reason = "the loop left no account of its own"
        if counts:
            rank, ours_count, own_count = counts[0]
            reason = f"rank {rank} summarised {ours_count} steps, of the loop's {own_count}"
        return missing(name, what, "s", reason)
    rank, ours, other = max(clocks, key=lambda x: abs(x[2] - x[1]) / max(1.0, x[1]))
    note = f"rank {rank}, which differs most" if len(clocks) > 1 else ""
    return compared(name, what, "s", ns_to_s(ours), ns_to_s(other), SAME_TIME, note)


def _of_rank(summary: Summary) -> OfRank:
    """Every step but the first has its times, and all have their bytes."""
    counted = [
        operation.bytes
        for operation in summary.operations
        if op_name(operation.op).startswith("all_reduce")
    ]
    told = summary.steps.count > 0 and summary.steps_end != BACKWARD
    return OfRank(
        gradient_bytes=sum(counted) / (summary.steps.count + 1) if told else math.nan,
        backward_ns=histogram.mean(summary.phases[Phase.BACKWARD]),
        exposed_ns=histogram.mean(summary.exposed),
        buckets_seen=False,
        same_bytes=None,
        note=_ALL_REDUCED,
    )
