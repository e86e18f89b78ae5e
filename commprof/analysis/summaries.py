"""Computes the figures of one world size from the summaries of always-on mode."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from commprof.analysis.checks.cross_checks import summary_checks
from commprof.analysis.collectives.apart import TrainedApart, trained_apart
from commprof.analysis.collectives.traffic import bus_factor
from commprof.analysis.late.passed_on import passed_on
from commprof.analysis.late.slower_ranks import SlowerRanks, slower_ranks
from commprof.analysis.late.stragglers import (
    OF_STEP,
    OF_STEPS,
    LateRank,
    beyond_the_others,
    find_late_rank,
)
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
from commprof.trace.host_summary import HostSummary, SeenHost, read_whole
from commprof.trace.reader import Trace
from commprof.trace.run.run_directory import WorldRun
from commprof.trace.schema import POINT_TO_POINT, Phase
from commprof.trace.summary import (
    Histogram,
    Ints,
    OperationSummary,
    Summary,
    mean_ns,
    merged_histogram,
    quantile_ns,
)
from commprof.units import ns_to_ms, ns_to_s, ns_to_us

Floats = npt.NDArray[np.float64]

#: A late rank is named only if its extra work is at least this fraction of the waiting for it. At
#: least this fraction of the extra work must be in a single phase, or in pauses.
_MOST = 0.5


#: Ranks are named as slower only if the waiting of at least this many intervals is known.
_FEWEST_BLOCKS = 8


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


@dataclass(frozen=True)
class SummaryPart:
    """The summary of one rank, or the sum of the summaries of one host's ranks."""

    ranks: tuple[int, ...]
    summary: Summary
    #: Number of steps of the rank with the fewest steps.
    fewest_steps: int
    #: Boot id, time namespace and namespace of process ids; the three identify the host.
    host: tuple[str, ...]
    host_name: str
    #: Names of operations, by code.
    ops: Sequence[str]
    #: Name and size of each group, by id.
    groups: Mapping[int, tuple[str, int]]
    dropped: int
    #: Ranks with figures of their own.
    listed: tuple[int, ...]
    #: Per listed rank: the time in ns that it waited for each other rank, as rows of rank and time.
    waited_ns: Sequence[Ints]
    #: Per listed rank: mean time per step in ns of each of ``ORIGINS``.
    work_ns: Sequence[Sequence[float]]


def rank_part(trace: Trace, summary: Summary) -> SummaryPart:
    """Returns the part of one rank."""
    machine = trace.metadata["machine"]
    return SummaryPart(
        ranks=(trace.rank,),
        summary=summary,
        fewest_steps=summary.steps.count,
        host=tuple(machine[name] for name in ("boot_id", "time_namespace", "pid_namespace")),
        host_name=str(machine["hostname"]),
        ops=trace.metadata.get("ops", schema.OPS),
        groups={group.id: (group.name, group.size) for group in trace.groups.values()},
        dropped=max(trace.dropped, summary.dropped),
        listed=(trace.rank,),
        waited_ns=[waited_by_rank(summary)],
        work_ns=[mean_by_origin(summary)],
    )


def host_part(found: HostSummary, summary: Summary) -> SummaryPart:
    """Returns the part of one host; ``summary``: the sum of its ranks' summaries."""
    return SummaryPart(
        ranks=found.ranks,
        summary=summary,
        fewest_steps=found.fewest_steps,
        host=found.machine,
        host_name=found.host,
        ops=found.ops,
        groups={number: (name, size) for number, name, size in found.groups},
        dropped=summary.dropped,
        listed=found.listed,
        waited_ns=[np.array(pairs, dtype=np.int64).reshape(-1, 2) for pairs in found.waited_ns],
        work_ns=found.work_ns,
    )


def share_a_clock(parts: Sequence[SummaryPart]) -> bool:
    """True if all ranks read the same CLOCK_MONOTONIC: one machine, boot and time namespace."""
    keys = {part.host[:2] for part in parts}  # boot id and time namespace
    return sum(len(part.ranks) for part in parts) == 1 or (len(keys) == 1 and ("", "") not in keys)


def waited_by_rank(summary: Summary) -> Ints:
    """Returns how long a rank waited for each other rank, as rows of rank and time in ns."""
    _, culprit, waited = summary.waited_for.cells.T
    ranks, row = np.unique(culprit, return_inverse=True)
    total = np.zeros(len(ranks), dtype=np.int64)
    np.add.at(total, row, waited)
    return np.column_stack([ranks, total])


def late_rank(traces: Sequence[Trace], summaries: Sequence[Summary]) -> SummaryLateRank | None:
    """Like :func:`late_rank_of`, for the summaries of ranks; None if a rank is missing."""
    if [trace.rank for trace in traces] != list(range(traces[0].world_size)):
        return None
    parts = [rank_part(*both) for both in zip(traces, summaries, strict=True)]
    return late_rank_of(traces[0].world_size, parts, share_a_clock(parts))


def late_rank_of(
    world_size: int, parts: Sequence[SummaryPart], clocks_shared: bool
) -> SummaryLateRank | None:
    """Finds the rank that the others wait for, as :func:`stragglers.find_late_rank` does.

    Returns None if there is no such rank, or if its own work does not explain the waiting. Also
    returns None if too few ranks have waits that can be compared.

    If a first search finds no rank, a second search charges the waiting to the rank where it began
    (see :mod:`commprof.analysis.late.passed_on`).
    """
    steps = min((part.fewest_steps for part in parts), default=0)
    comparable = [part for part in parts if clocks_shared or _comparable(part.summary)]
    if steps == 0 or 2 * sum(len(part.ranks) for part in comparable) <= world_size:
        return None
    waited_for, by_waiting = (
        _waited_for(world_size, comparable),
        _by_waiting(world_size, comparable),
    )
    step_ns = quantile_ns(merged_histogram(part.summary.steps for part in parts), 0.5)
    error_ns = _clock_error_ns(parts)
    # find_late_rank expects a row per step. Here a row is a block of this many steps.
    per_row = steps / max(1, len(waited_for))

    def with_cause(waited_for_ns: Floats, by_waiting_ns: Floats) -> SummaryLateRank | None:
        late = find_late_rank(waited_for_ns, step_ns * per_row, error_ns * per_row, by_waiting_ns)
        return None if late is None else _with_cause(late, per_row, parts)

    late = with_cause(waited_for, by_waiting)
    if late is not None:
        return late
    begun = passed_on(waited_for, by_waiting, _excess_ns(world_size, parts), steps)
    if begun is None:
        return None
    late = with_cause(begun.waited_for_ns, begun.by_waiting_ns)
    return None if late is None else replace(late, through=begun.through)


def slower_ranks_of(
    world_size: int, parts: Sequence[SummaryPart], clocks_shared: bool, late: int | None
) -> SlowerRanks | None:
    """Finds ranks that work longer than all others, see :mod:`commprof.analysis.late.slower_ranks`.

    Returns None if there are none, if the work or the waiting of a rank is not known, or if the job
    sends point-to-point messages.

    Args:
        world_size: number of ranks of the job.
        parts: the summaries.
        clocks_shared: as in :func:`late_rank_of`.
        late: the rank that is named as late; None if there is none.
    """
    steps = min((part.fewest_steps for part in parts), default=0)
    listed = [rank for part in parts for rank in part.listed]
    is_known = clocks_shared or all(_comparable(part.summary) for part in parts)
    if not steps or sorted(listed) != list(range(world_size)) or not is_known:
        return None
    if any(operation.op in POINT_TO_POINT for p in parts for operation in p.summary.operations):
        return None  # stages of a pipeline wait for one another, even if no stage is slow
    work_ns = np.array([work for part in parts for work in part.work_ns])[:, :, np.newaxis]
    waited_for = _waited_for(world_size, parts)
    waits = _by_waiting(world_size, parts), float(waited_for.sum()), steps
    hosts = {rank: part.host_name for part in parts for rank in part.listed}
    step_ns = quantile_ns(merged_histogram(part.summary.steps for part in parts), 0.5)
    slower = slower_ranks(work_ns, *waits, listed, hosts, step_ns, _clock_error_ns(parts), late)
    if slower is None or len(waited_for) < _FEWEST_BLOCKS:
        return None
    # A single long stall can raise the mean over the run, so most intervals must show the waiting.
    by_block = waited_for[:, list(slower.ranks)].sum(axis=1) / slower.waiting_ranks
    least_ns = OF_STEP * step_ns * steps / len(waited_for)
    return slower if np.quantile(by_block, 1 - OF_STEPS) >= least_ns else None


def _clock_error_ns(parts: Sequence[SummaryPart]) -> float:
    """Returns the 95th percentile of the arrivals' clock errors; 0 if ranks share one clock."""
    error = merged_histogram(part.summary.arrival_clock_error for part in parts)
    return quantile_ns(error, 0.95) if error.count else 0.0


def _with_cause(
    late: LateRank, per_row: float, parts: Sequence[SummaryPart]
) -> SummaryLateRank | None:
    """Adds the phase in which a late rank loses time; None if the rank's work is not the cause."""
    wait_ns = late.wait_ns / per_row
    phase, share, excess_ns = _slow_phase(late.rank, parts)
    if share < _MOST or excess_ns < _MOST * wait_ns:
        return None
    return SummaryLateRank(
        rank=late.rank,
        wait_ms=ns_to_ms(wait_ns),
        share=late.share,
        p_value=late.p_value,
        cost_s=late.cost_s,
        phase=phase,
        phase_share=share,
        waiting_ranks=late.waiting_ranks,
    )


def _excess_ns(world_size: int, parts: Sequence[SummaryPart]) -> Floats:
    """Returns by how many ns per step each rank's work exceeds the others'; NaN if unknown."""
    excess = np.full(world_size, np.nan)
    listed = [rank for part in parts for rank in part.listed]
    beyond = beyond_the_others(np.array([work for part in parts for work in part.work_ns]))
    excess[listed] = np.maximum(0, beyond).sum(axis=1)
    return excess


def _comparable(summary: Summary) -> bool:
    """True if the waits for ranks of other hosts are known.

    The rank's host must know the offset between its own clock and rank 0's clock, and must have
    received arrivals from other hosts.
    """
    return bool(summary.hosts.clock and summary.hosts.heard)


def _waited_for(
    world_size: int, parts: Sequence[SummaryPart]
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Returns waiting time in ns as ``[block, rank waited for]``, summed over the waiting ranks.

    A block is an interval of time. All blocks are as long as the longest block of any summary.
    """
    waiting = [part.summary.waited_for for part in parts]
    block_ns = max(waits.block_ns for waits in waiting)
    block = np.concatenate([w.cells[:, 0] * w.block_ns // block_ns for w in waiting])
    culprit = np.concatenate([waits.cells[:, 1] for waits in waiting])
    waited = np.concatenate([waits.cells[:, 2] for waits in waiting])
    known, row = np.unique(block, return_inverse=True)
    total = np.zeros((len(known), world_size))
    inside = culprit < world_size
    np.add.at(total, (row[inside], culprit[inside]), waited[inside])
    return total


def _by_waiting(
    world_size: int, parts: Sequence[SummaryPart]
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Returns waiting time in ns as ``[waiting rank, rank waited for]``.

    The unlisted ranks of a host share the rest of the host's waiting evenly.
    """
    total = np.zeros((world_size, world_size))
    for part in parts:
        for rank, pairs in zip(part.listed, part.waited_ns, strict=True):
            inside = pairs[pairs[:, 0] < world_size]
            total[rank, inside[:, 0]] = inside[:, 1]
        unlisted = np.setdiff1d(part.ranks, part.listed)
        if len(unlisted):
            left = _waited_for(world_size, [part]).sum(axis=0) - total[list(part.listed)].sum(
                axis=0
            )
            waiting = np.full(world_size, len(unlisted))
            waiting[unlisted] -= 1  # a rank does not wait for itself
            total[unlisted] = np.maximum(0, left) / np.maximum(1, waiting)
            total[unlisted, unlisted] = 0
    return total


def _slow_phase(rank: int, parts: Sequence[SummaryPart]) -> tuple[str, float, float]:
    """Returns the entry of ``ORIGINS`` (a phase, or pauses) in which the rank loses the most time.

    Also returns the entry's fraction of all lost time, and all lost time in ns per step. Lost time
    is the rank's mean time minus the median of the other ranks. Returns "" and zeros if the rank,
    or every other rank, has no figures of its own.
    """
    listed = [rank for part in parts for rank in part.listed]
    if rank not in listed or len(listed) < 2:
        return "", 0.0, 0.0
    means, row = np.array([work for part in parts for work in part.work_ns]), listed.index(rank)
    excess = np.maximum(0, means[row] - np.median(np.delete(means, row, axis=0), axis=0))
    best = int(np.argmax(excess))
    total = float(excess.sum())
    return ORIGINS[best], float(excess[best]) / total if total > 0 else 0.0, total


def mean_by_origin(summary: Summary) -> list[float]:
    """Returns the mean time per step in ns of each of ``ORIGINS``; 0 without steps."""
    steps = max(1, summary.steps.count)
    paused = [total / steps for total in summary.paused_ns]
    work = [mean_ns(phase) if phase.count else 0.0 for phase in summary.phases]
    return [*(a - b for a, b in zip(work, paused, strict=True)), sum(paused)]


#: Name of the row that sums up operations for which the summary had no room.
_OTHERS = "other"


def analyse_summaries(run: WorldRun) -> SummaryResult | None:
    """Merges the ranks' summaries; None if no rank left a summary."""
    found = [
        (trace, trace.summary)
        for _, trace in sorted(run.traces.items())
        if trace.summary is not None
    ]
    if not found:
        return None
    traces, summaries = [trace for trace, _ in found], [summary for _, summary in found]
    result = _merged(
        run.world_size,
        [rank_part(trace, summary) for trace, summary in found],
        late_rank(traces, summaries),
        run.problems,
    )
    return replace(result, cross_checks=summary_checks(run, found), apart=_apart(run, traces))


def analyse_hosts(hosts: Sequence[SeenHost]) -> SummaryResult | None:
    """Merges the summaries that the hosts of a running job wrote.

    None if a rank is missing, or if a file cannot be used.
    """
    heard = [host for host in hosts if host.summary is not None and not host.missing]
    world_size = max((host.summary.world_size for host in heard if host.summary), default=0)
    ranks = sorted(rank for host in heard if host.summary for rank in host.summary.ranks)
    if not heard or ranks != list(range(world_size)):
        return None
    try:
        parts = [host_part(*read_whole(host.path)) for host in heard]
    except (OSError, ValueError):
        return None
    late = late_rank_of(world_size, parts, share_a_clock(parts))
    return _merged(world_size, parts, late, ())


def _merged(
    world_size: int,
    parts: Sequence[SummaryPart],
    late: SummaryLateRank | None,
    problems: tuple[str, ...],
) -> SummaryResult:
    summaries = [part.summary for part in parts]
    shared = share_a_clock(parts)
    slower = slower_ranks_of(world_size, parts, shared, late.rank if late else None)
    steps = merged_histogram(summary.steps for summary in summaries)
    exposed = merged_histogram(summary.exposed for summary in summaries)
    clock_error = merged_histogram(summary.arrival_clock_error for summary in summaries)
    # All ranks of a host report the same counters, which only grow. So the largest value is the
    # latest.
    unsent: dict[tuple[str, ...], int] = {}
    skipped: dict[tuple[str, ...], int] = {}
    for part in parts:
        hosts = part.summary.hosts
        unsent[part.host] = max(unsent.get(part.host, 0), hosts.unsent)
        skipped[part.host] = max(skipped.get(part.host, 0), hosts.skipped)
    means = {phase: _mean_ms([s.phases[phase] for s in summaries]) for phase in Phase}
    return SummaryResult(
        world_size=world_size,
        ranks=tuple(sorted(rank for part in parts for rank in part.ranks)),
        covered_s=max(ns_to_s(summary.end_ns - summary.begin_ns) for summary in summaries),
        timing=SummaryTiming(
            steps=min(part.fewest_steps for part in parts),
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
        late_rank=late,
        slower_ranks=slower,
        operations=_operations(parts),
        moved=sum(summary.moved for summary in summaries),
        dropped_records=sum(part.dropped for part in parts),
        unmatched=sum(summary.unmatched for summary in summaries),
        problems=problems,
        cross_checks=(),
    )


def _apart(run: WorldRun, traces: Sequence[Trace]) -> TrainedApart | None:
    if any(trace.dropped for trace in traces):
        return None
    by_python = any(trace.metadata.get("capture") == "python" for trace in traces)
    found = [each for each in map(exchanged_in_summary, traces) if each is not None]
    return trained_apart(found, run.world_size, sees_all=not by_python)


def _mean_ms(histograms: Sequence[Histogram]) -> float:
    return ns_to_ms(mean_ns(merged_histogram(histograms)))


def _operations(parts: Sequence[SummaryPart]) -> tuple[OperationRow, ...]:
    """Joins the operations by operation, group name and size class.

    Group names are used because group ids differ between processes.
    """
    rows: dict[tuple[str, str, int], list[OperationSummary]] = {}
    for part in parts:
        for one in part.summary.operations:
            name = "" if one.group == 0 else part.groups.get(one.group, (f"#{one.group}", 0))[0]
            op = part.ops[one.op] if one.op < len(part.ops) else f"#{one.op}"
            rows.setdefault((op, name, one.size_class), []).append(one)
    ranks = dict(group for part in parts for group in part.groups.values())
    made = [_row(*key, ranks.get(key[1], 0), entries) for key, entries in rows.items()]
    return tuple(sorted(made, key=lambda row: (-_weight(row), row.op, row.group, row.below_bytes)))


def _weight(row: OperationRow) -> float:
    return 0.0 if math.isnan(row.duration.total_ms) else row.duration.total_ms


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
    """Returns the algorithm bandwidth; NaN for gather, scatter and "other", and if unknown.

    The size of a call is the larger of its input and output.
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
