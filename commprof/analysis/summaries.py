"""Figures of one world size from the summaries of always-on mode, without records.

The figures include which rank came last and which rank the others wait for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from commprof.analysis.align.arrivals import clocks_are_shared
from commprof.analysis.checks.cross_checks import summary_checks
from commprof.analysis.collectives.apart import TrainedApart, trained_apart
from commprof.analysis.collectives.traffic import bus_factor
from commprof.analysis.late.stragglers import find_late_rank
from commprof.analysis.step.exposure import ORIGINS
from commprof.analysis.summary_result import (
    LastRow,
    OperationRow,
    Quantiles,
    SummaryArrivals,
    SummaryLateRank,
    SummaryResult,
    SummaryTiming,
)
from commprof.trace import schema
from commprof.trace.exchanged import exchanged_in_summary
from commprof.trace.found_steps import SOURCES
from commprof.trace.reader import Trace
from commprof.trace.run.run_directory import WorldRun
from commprof.trace.schema import Phase
from commprof.trace.summary import (
    Histogram,
    OperationSummary,
    Summary,
    mean_ns,
    merged_histogram,
    quantile_ns,
)
from commprof.units import ns_to_ms, ns_to_s, ns_to_us

#: The late rank is named if one phase, or pauses, make up this fraction of its excess of own work,
#: and if the excess is at least this fraction of the waiting.
_MOST = 0.5


def last_rows(summaries: Sequence[Summary]) -> tuple[LastRow, ...]:
    """Returns one row per rank that arrived last at some operation; the most costly rank first."""
    count: dict[int, int] = {}
    wait_ns: dict[int, int] = {}
    for summary in summaries:
        for last in summary.last:
            count[last.rank] = count.get(last.rank, 0) + last.count
            wait_ns[last.rank] = wait_ns.get(last.rank, 0) + last.wait_ns
    total = sum(count.values()) + sum(summary.last_others_count for summary in summaries)
    rows = [LastRow(rank, count[rank] / total, ns_to_s(wait_ns[rank])) for rank in count]
    return tuple(sorted(rows, key=lambda row: (-row.cost_s, row.rank)))


def late_rank(traces: Sequence[Trace], summaries: Sequence[Summary]) -> SummaryLateRank | None:
    """Finds the rank that the others wait for, as :func:`stragglers.find_late_rank` does.

    Returns None if there is no such rank, if a rank left no summary, or if the waits of half of the
    ranks or more cannot be compared, see :func:`_comparable`. Also returns None if the cause is
    unclear: neither a single phase nor pauses account for at least half of the rank's total excess
    of time, see :func:`_slow_phase`, or the excess is less than half of the waiting. The rank may
    then have waited for a third rank itself.
    """
    ranks = [trace.rank for trace in traces]
    steps = min(summary.steps.count for summary in summaries)
    if ranks != list(range(traces[0].world_size)) or steps == 0:
        return None
    comparable = _comparable(traces, summaries)
    if 2 * sum(comparable) <= len(summaries):
        return None
    waited_for = _waited_for(summaries, comparable)
    rows = len(waited_for)
    step_ns = quantile_ns(merged_histogram(s.steps for s in summaries), 0.5)
    error = merged_histogram(s.arrival_clock_error for s in summaries)
    error_ns = quantile_ns(error, 0.95) if error.count else 0.0  # one clock for all
    # find_late_rank works per row, and a row holds this many steps.
    per_row = steps / max(1, rows)
    by_waiting = _by_waiting(summaries, comparable)
    found = find_late_rank(waited_for, step_ns * per_row, error_ns * per_row, by_waiting)
    if found is None:
        return None
    wait_ns = found.wait_ns * rows / steps
    phase, share, excess_ns = _slow_phase(found.rank, summaries)
    if share < _MOST or excess_ns < _MOST * wait_ns:
        return None
    return SummaryLateRank(
        rank=found.rank,
        wait_ms=ns_to_ms(wait_ns),
        share=found.share,
        p_value=found.p_value,
        cost_s=found.cost_s,
        phase=phase,
        phase_share=share,
        waiting_ranks=found.waiting_ranks,
    )


def _comparable(traces: Sequence[Trace], summaries: Sequence[Summary]) -> list[bool]:
    """Returns for each rank whether its waits for ranks of other hosts are known.

    They are if all ranks share a clock, or if the rank's host knows its clock's offset to rank 0's
    clock and has received arrivals of other hosts. A host that is cut off has no such waits.
    """
    shared = clocks_are_shared(traces)
    return [shared or bool(s.hosts.clock and s.hosts.heard) for s in summaries]


def _waited_for(
    summaries: Sequence[Summary], comparable: Sequence[bool]
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Returns waiting time in ns as ``[block, rank waited for]``, summed over comparable ranks.

    A block is an interval of time. Its length is the largest block length of any summary.
    """
    waiting = [summary for summary, known in zip(summaries, comparable, strict=True) if known]
    block_ns = max(summary.waited_for.block_ns for summary in waiting)
    blocks, culprits, waited = [], [], []
    for summary in waiting:
        cells = summary.waited_for.cells
        blocks.append(cells[:, 0] * summary.waited_for.block_ns // block_ns)
        culprits.append(cells[:, 1])
        waited.append(cells[:, 2])
    known, row = np.unique(np.concatenate(blocks), return_inverse=True)
    culprit = np.concatenate(culprits)
    total = np.zeros((len(known), len(summaries)))
    inside = culprit < len(summaries)
    np.add.at(total, (row[inside], culprit[inside]), np.concatenate(waited)[inside])
    return total


def _by_waiting(
    summaries: Sequence[Summary], comparable: Sequence[bool]
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Returns waiting time in ns as ``[waiting rank, rank waited for]``, over all blocks.

    Ranks that are not comparable count as not waiting.
    """
    total = np.zeros((len(summaries), len(summaries)))
    for row, summary, known in zip(total, summaries, comparable, strict=True):
        if not known:
            continue
        _, culprit, waited = summary.waited_for.cells.T
        inside = culprit < len(summaries)
        np.add.at(row, culprit[inside], waited[inside])
    return total


def _slow_phase(rank: int, summaries: Sequence[Summary]) -> tuple[str, float, float]:
    """Returns the entry of ``ORIGINS`` (phases and pauses) with the rank's largest excess of time.

    The excess is the rank's mean own time in the phase, or in pauses, less the median of the other
    ranks' means; 0 if negative. Also returns the entry's fraction of the rank's total excess, or 0
    if there is no excess, and the total excess in ns per step.
    """
    means = np.array([_mean_by_origin(summary) for summary in summaries])
    excess = np.maximum(0, means[rank] - np.median(np.delete(means, rank, axis=0), axis=0))
    best = int(np.argmax(excess))
    total = float(excess.sum())
    return ORIGINS[best], float(excess[best]) / total if total > 0 else 0.0, total


def _mean_by_origin(summary: Summary) -> list[float]:
    """Returns the mean time per step in ns of each of ``ORIGINS``; the summary must have steps."""
    paused = [total / summary.steps.count for total in summary.paused_ns]
    work = [mean_ns(phase) for phase in summary.phases]
    return [*(a - b for a, b in zip(work, paused, strict=True)), sum(paused)]


#: Name of the row that sums up operations for which the summary had no room.
_OTHERS = "other"


def analyse_summaries(run: WorldRun) -> SummaryResult | None:
    """Merges the ranks' summaries; None if no rank left a summary."""
    found = {
        rank: (trace, trace.summary)
        for rank, trace in sorted(run.traces.items())
        if trace.summary is not None
    }
    if not found:
        return None
    summaries = [summary for _, summary in found.values()]
    steps = merged_histogram(summary.steps for summary in summaries)
    exposed = merged_histogram(summary.exposed for summary in summaries)
    clock_error = merged_histogram(summary.arrival_clock_error for summary in summaries)
    # All ranks of a host report the same counters, read at different moments.
    unsent: dict[tuple[str, ...], int] = {}
    skipped: dict[tuple[str, ...], int] = {}
    for trace, summary in found.values():
        host = _host(trace)
        unsent[host] = max(unsent.get(host, 0), summary.hosts.unsent)
        skipped[host] = max(skipped.get(host, 0), summary.hosts.skipped)
    means = {phase: _mean_ms([s.phases[phase] for s in summaries]) for phase in Phase}
    return SummaryResult(
        world_size=run.world_size,
        ranks=tuple(found),
        covered_s=max(ns_to_s(summary.end_ns - summary.begin_ns) for summary in summaries),
        timing=SummaryTiming(
            steps=min(summary.steps.count for summary in summaries),
            steps_end=max((summary.steps_end for summary in summaries), key=SOURCES.index),
            step_median_ms=ns_to_ms(quantile_ns(steps, 0.5)),
            step_p95_ms=ns_to_ms(quantile_ns(steps, 0.95)),
            data_ms=means[Phase.DATA],
            forward_ms=means[Phase.FORWARD],
            backward_ms=means[Phase.BACKWARD],
            exposed_ms=ns_to_ms(mean_ns(exposed)),
            optimizer_ms=means[Phase.OPTIMIZER],
            other_ms=means[Phase.OTHER],
            step_ms=ns_to_ms(mean_ns(steps)),
            exposed_p95_ms=ns_to_ms(quantile_ns(exposed, 0.95)),
            exposed_wait_ms=_mean_ms([s.exposed_wait for s in summaries]),
            exposed_transfer_ms=_mean_ms([s.exposed_transfer for s in summaries]),
            unsplit_steps=sum(summary.unsplit_steps for summary in summaries),
        ),
        arrivals=SummaryArrivals(
            arrivals_unknown=sum(summary.arrivals_unknown for summary in summaries),
            arrivals_without_place=sum(summary.arrivals_without_place for summary in summaries),
            arrivals_unlisted=sum(summary.arrivals_unlisted for summary in summaries),
            arrivals_known=sum(summary.arrivals_known for summary in summaries),
            arrivals_partial=sum(summary.arrivals_partial for summary in summaries),
            machines=len(unsent),
            clocks_compared=all(summary.hosts.clock for summary in summaries),
            hosts_heard=min(summary.hosts.heard for summary in summaries),
            unsent_datagrams=sum(unsent.values()),
            skipped_collectives=sum(skipped.values()),
            arrival_clock_error_p95_us=ns_to_us(quantile_ns(clock_error, 0.95)),
            arrival_clock_error_us=ns_to_us(clock_error.max_ns) if clock_error.count else math.nan,
        ),
        last=last_rows(summaries),
        late_rank=late_rank([trace for trace, _ in found.values()], summaries),
        operations=_operations(list(found.values())),
        moved=sum(summary.moved for summary in summaries),
        dropped_records=sum(max(trace.dropped, s.dropped) for trace, s in found.values()),
        unmatched=sum(summary.unmatched for summary in summaries),
        problems=run.problems,
        cross_checks=summary_checks(run, list(found.values())),
        apart=_apart(run, [trace for trace, _ in found.values()]),
    )


def _apart(run: WorldRun, traces: Sequence[Trace]) -> TrainedApart | None:
    if any(trace.dropped for trace in traces):
        return None
    by_python = any(trace.metadata.get("capture") == "python" for trace in traces)
    found = [each for each in map(exchanged_in_summary, traces) if each is not None]
    return trained_apart(found, run.world_size, sees_all=not by_python)


def _host(trace: Trace) -> tuple[str, ...]:
    machine = trace.metadata["machine"]
    return tuple(machine[name] for name in ("boot_id", "time_namespace", "pid_namespace"))


def _mean_ms(histograms: Sequence[Histogram]) -> float:
    return ns_to_ms(mean_ns(merged_histogram(histograms)))


def _operations(found: Sequence[tuple[Trace, Summary]]) -> tuple[OperationRow, ...]:
    """Joins the ranks' operations by operation name, group name and size class.

    Group numbers cannot be used, because they differ between processes.
    """
    rows: dict[tuple[str, str, int], list[OperationSummary]] = {}
    for trace, summary in found:
        for one in summary.operations:
            group = trace.groups.get(one.group)
            name = "" if one.group == 0 else f"#{one.group}" if group is None else group.name
            rows.setdefault((_name(trace, one.op), name, one.size_class), []).append(one)
    ranks = {group.name: group.size for trace, _ in found for group in trace.groups.values()}
    made = [_row(*key, ranks.get(key[1], 0), parts) for key, parts in rows.items()]
    return tuple(sorted(made, key=lambda row: (-_weight(row), row.op, row.group, row.below_bytes)))


def _weight(row: OperationRow) -> float:
    return 0.0 if math.isnan(row.duration.total_ms) else row.duration.total_ms


def _name(trace: Trace, op: int) -> str:
    names = trace.metadata.get("ops", schema.OPS)
    return str(names[op]) if op < len(names) else f"#{op}"


def _row(
    op: str, group: str, size_class: int, group_size: int, parts: Sequence[OperationSummary]
) -> OperationRow:
    algbw_gb_per_s = _algbw_gb_per_s(op, parts)
    return OperationRow(
        op=op,
        group=group,
        below_bytes=2**size_class if size_class else 0,
        count=sum(part.count for part in parts),
        bytes=sum(part.bytes for part in parts),
        failed=sum(part.failed for part in parts),
        unfinished=sum(part.unfinished for part in parts),
        duration=_quantiles([part.duration for part in parts]),
        wait=_quantiles([part.wait for part in parts]),
        until_last=_quantiles([part.until_last for part in parts]),
        transfer=_quantiles([part.transfer for part in parts]),
        algbw_gb_per_s=algbw_gb_per_s,
        busbw_gb_per_s=algbw_gb_per_s * bus_factor(op, group_size),
    )


def _algbw_gb_per_s(op: str, parts: Sequence[OperationSummary]) -> float:
    """Returns the algorithm bandwidth, with the larger of input and output as size.

    NaN for gather, scatter and "other", whose size is not known.
    """
    transfer_ns = sum(part.transfer.sum_ns for part in parts)
    moved = sum(part.bytes / part.count * part.transfer.count for part in parts if part.count)
    known = op not in ("gather", "scatter", _OTHERS) and moved > 0 and transfer_ns > 0
    return moved / transfer_ns if known else math.nan  # bytes per ns are GB/s


def _quantiles(parts: Sequence[Histogram]) -> Quantiles:
    merged = merged_histogram(parts)
    return Quantiles(
        count=merged.count,
        p50_ms=ns_to_ms(quantile_ns(merged, 0.5)),
        p95_ms=ns_to_ms(quantile_ns(merged, 0.95)),
        p99_ms=ns_to_ms(quantile_ns(merged, 0.99)),
        total_ms=ns_to_ms(merged.sum_ns) if merged.count else math.nan,
    )
