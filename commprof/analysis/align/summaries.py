"""One world size from the summaries of always-on mode: no records are needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from commprof.analysis.align import histogram
from commprof.analysis.checks.figure_checks import CrossCheck
from commprof.analysis.checks.summary_checks import summary_checks
from commprof.analysis.collectives.bandwidth import bus_factor
from commprof.analysis.late.summary_ranks import LastRow, SummaryLateRank, last_rows, late_rank
from commprof.trace import schema
from commprof.trace.found_steps import SOURCES
from commprof.trace.reader import Trace
from commprof.trace.run.run_directory import WorldRun
from commprof.trace.schema import Phase
from commprof.trace.summary import Histogram, OperationSummary, Summary
from commprof.units import ns_to_ms, ns_to_s, ns_to_us

#: The row of operations that found no place of their own: of several kinds.
_OTHERS = "other"


@dataclass(frozen=True)
class Quantiles:
    """Of one histogram, in milliseconds; each within 1 %. NaN without values."""

    #: Values behind it.
    count: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    #: Exact.
    total_ms: float


@dataclass(frozen=True)
class OperationRow:
    """One kind of operation, over all ranks."""

    #: c10d's name; "other" for those that found no place of their own.
    op: str
    #: Name of the process group, the same on all ranks; empty for "other".
    group: str
    #: The message's size lies below this, and not below half of it; 0 for none.
    below_bytes: int
    #: Issued, on all ranks.
    count: int
    #: Sum over them of the larger of input and output.
    bytes: int
    failed: int
    unfinished: int
    #: From issue to completion.
    duration: Quantiles
    #: Of the waits that blocked.
    wait: Quantiles
    #: Of collectives whose last rank became known: from issue to that rank's, and from there to
    #: completion. With gloo the latter holds the time in its queue.
    until_last: Quantiles
    wire: Quantiles
    #: Mean size over mean wire of the same collectives, and times the bus factor; NaN without any,
    #: and of gather and scatter, of which a summary does not keep the size.
    algbw_gb_per_s: float
    busbw_gb_per_s: float


@dataclass(frozen=True)
class SummaryResult:
    """All ranks of one world size since always-on mode began, without each rank's first step."""

    world_size: int
    #: Those that left a summary.
    ranks: tuple[int, ...]
    #: Longest time that one of them covers.
    covered_s: float
    #: Fewest steps of a rank.
    steps: int
    #: Where they end: of ``found_steps.SOURCES``, the least certain one of any rank.
    steps_end: str
    #: Over all steps of all ranks; quantiles within 1 %.
    step_median_ms: float
    step_p95_ms: float
    #: Means over all steps of all ranks, exact; the parts add up to ``step_ms``.
    data_ms: float
    forward_ms: float
    backward_ms: float
    exposed_ms: float
    optimizer_ms: float
    other_ms: float
    step_ms: float
    exposed_p95_ms: float
    #: Means of the exposed time before and after the deciding rank's arrival, over the steps for
    #: which that is known; NaN without any.
    exposed_wait_ms: float
    exposed_wire_ms: float
    #: Steps, and collectives, for which it is not known.
    unsplit_steps: int
    arrivals_unknown: int
    #: Those of them whose group had no place, or no room, in the memory that the ranks share.
    arrivals_without_place: int
    #: Collectives whose last rank is known, counted by each rank.
    arrivals_known: int
    #: Hosts on which the ranks ran: what has memory and a clock in common.
    machines: int
    #: Whether all of these clocks are known against rank 0's, and from how many other hosts the
    #: one with the fewest got arrivals.
    clocks_compared: bool
    hosts_heard: int
    #: Datagrams with arrivals that the network would not take.
    unsent_datagrams: int
    #: Over the collectives known that ranks of several hosts took part in: bound on the error of
    #: their arrivals, of 95 % of them within 1 %, and of all. In µs; NaN without any.
    arrival_clock_error_p95_us: float
    arrival_clock_error_us: float
    last: tuple[LastRow, ...]
    late_rank: SummaryLateRank | None
    #: By total time from issue to completion, largest first.
    operations: tuple[OperationRow, ...]
    #: Operations that count in the row "other".
    moved: int
    dropped_records: int
    #: Completions and waits whose issue was not seen.
    unmatched: int
    #: Traces that could not be read, or not to their end, in sentences.
    problems: tuple[str, ...]
    cross_checks: tuple[CrossCheck, ...]


def analyse_summaries(run: WorldRun) -> SummaryResult | None:
    """Merges the ranks' summaries; None where no rank left one."""
    found = {
        rank: (trace, trace.summary)
        for rank, trace in sorted(run.traces.items())
        if trace.summary is not None
    }
    if not found:
        return None
    summaries = [summary for _, summary in found.values()]
    steps = histogram.merge(summary.steps for summary in summaries)
    exposed = histogram.merge(summary.exposed for summary in summaries)
    clock_error = histogram.merge(summary.arrival_clock_error for summary in summaries)
    # What is known of a host is the same on all of its ranks, but for the moment.
    unsent: dict[tuple[str, ...], int] = {}
    for trace, summary in found.values():
        unsent[_host(trace)] = max(unsent.get(_host(trace), 0), summary.hosts.unsent)
    means = {phase: _mean_ms([s.phases[phase] for s in summaries]) for phase in Phase}
    return SummaryResult(
        world_size=run.world_size,
        ranks=tuple(found),
        covered_s=max(ns_to_s(summary.end_ns - summary.begin_ns) for summary in summaries),
        steps=min(summary.steps.count for summary in summaries),
        steps_end=max((summary.steps_end for summary in summaries), key=SOURCES.index),
        step_median_ms=ns_to_ms(histogram.quantile(steps, 0.5)),
        step_p95_ms=ns_to_ms(histogram.quantile(steps, 0.95)),
        data_ms=means[Phase.DATA],
        forward_ms=means[Phase.FORWARD],
        backward_ms=means[Phase.BACKWARD],
        exposed_ms=ns_to_ms(histogram.mean(exposed)),
        optimizer_ms=means[Phase.OPTIMIZER],
        other_ms=means[Phase.OTHER],
        step_ms=ns_to_ms(histogram.mean(steps)),
        exposed_p95_ms=ns_to_ms(histogram.quantile(exposed, 0.95)),
        exposed_wait_ms=_mean_ms([s.exposed_wait for s in summaries]),
        exposed_wire_ms=_mean_ms([s.exposed_wire for s in summaries]),
        unsplit_steps=sum(summary.unsplit_steps for summary in summaries),
        arrivals_unknown=sum(summary.arrivals_unknown for summary in summaries),
        arrivals_without_place=sum(summary.arrivals_without_place for summary in summaries),
        arrivals_known=sum(summary.arrivals_known for summary in summaries),
        machines=len(unsent),
        clocks_compared=all(summary.hosts.clock for summary in summaries),
        hosts_heard=min(summary.hosts.heard for summary in summaries),
        unsent_datagrams=sum(unsent.values()),
        arrival_clock_error_p95_us=ns_to_us(histogram.quantile(clock_error, 0.95)),
        arrival_clock_error_us=ns_to_us(clock_error.max_ns) if clock_error.count else math.nan,
        last=last_rows(summaries),
        late_rank=late_rank([trace for trace, _ in found.values()], summaries),
        operations=_operations(list(found.values())),
        moved=sum(summary.moved for summary in summaries),
        dropped_records=sum(max(trace.dropped, s.dropped) for trace, s in found.values()),
        unmatched=sum(summary.unmatched for summary in summaries),
        problems=run.problems,
        cross_checks=summary_checks(run, list(found.values())),
    )


def _host(trace: Trace) -> tuple[str, ...]:
    machine = trace.metadata["machine"]
    return tuple(machine[name] for name in ("boot_id", "time_namespace", "pid_namespace"))


def _mean_ms(histograms: Sequence[Histogram]) -> float:
    return ns_to_ms(histogram.mean(histogram.merge(histograms)))


def _operations(found: Sequence[tuple[Trace, Summary]]) -> tuple[OperationRow, ...]:
    """Joined over the ranks by names: a group's number is its process's own."""
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
        wire=_quantiles([part.wire for part in parts]),
        algbw_gb_per_s=algbw_gb_per_s,
        busbw_gb_per_s=algbw_gb_per_s * bus_factor(op, group_size),
    )


def _algbw_gb_per_s(op: str, parts: Sequence[OperationSummary]) -> float:
    """The larger of input and output is what nccl-tests call size, but of gather and scatter."""
    wire_ns = sum(part.wire.sum_ns for part in parts)
    moved = sum(part.bytes / part.count * part.wire.count for part in parts if part.count)
    known = op not in ("gather", "scatter", _OTHERS) and moved > 0 and wire_ns > 0
    return moved / wire_ns if known else math.nan  # bytes per ns are GB/s


def _quantiles(parts: Sequence[Histogram]) -> Quantiles:
    merged = histogram.merge(parts)
    return Quantiles(
        count=merged.count,
        p50_ms=ns_to_ms(histogram.quantile(merged, 0.5)),
        p95_ms=ns_to_ms(histogram.quantile(merged, 0.95)),
        p99_ms=ns_to_ms(histogram.quantile(merged, 0.99)),
        total_ms=ns_to_ms(merged.sum_ns) if merged.count else math.nan,
    )
