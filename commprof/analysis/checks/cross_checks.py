"""Compares commprof's figures with other measurements of the same run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.arrivals import backward_of
from commprof.analysis.checks.figure_checks import (
    SAME_BYTES,
    SAME_TIME,
    CrossCheck,
    OfRank,
    compared,
    ddp_checks,
    missing,
    network_check,
)
from commprof.analysis.collectives.traffic import all_sent_bytes, sizes_bytes
from commprof.analysis.step.measured import Observed
from commprof.trace import columns
from commprof.trace.columns import Buckets
from commprof.trace.found_steps import BACKWARD
from commprof.trace.lookup import row_containing
from commprof.trace.operations import codes_of
from commprof.trace.reader import Trace
from commprof.trace.run.run_directory import WorldRun
from commprof.trace.schema import OPS, Phase
from commprof.trace.summary import Summary, mean_ns
from commprof.units import ns_to_ms, ns_to_s

_ALL_REDUCES = codes_of("all_reduce")


def cross_checks(
    run: WorldRun, ranks: Sequence[Observed], are_sampled: bool
) -> tuple[CrossCheck, ...]:
    """Returns all cross-checks of one world size.

    A check without data gives the reason. ``are_sampled``: True if ``ranks`` hold the calls of a
    sample of the steps only.
    """
    traces = [rank.trace for rank in ranks]
    return (
        _phases(ranks),
        _loop_clock(run, ranks),
        *ddp_checks(traces, lambda i, group: _figures_of_records(ranks[i], group)),
        _network(run, ranks, are_sampled),
    )


def _phases(ranks: Sequence[Observed]) -> CrossCheck:
    """Compares the step time with the sum of its parts.

    The sum is larger than the step time if some time is counted twice.
    """
    names = ("data", "forward", "backward", "exposed", "optimizer", "other")
    measured = ranks[0].parts
    wall = parts = 0.0
    sums = [np.maximum(measured.table(name), 0).sum(axis=1).tolist() for name in names]
    for rank, of_parts in zip(ranks, zip(*sums, strict=True), strict=True):
        wall += rank.total_ns("wall")
        for part_ns in of_parts:
            parts += part_ns
    steps = len(ranks) * len(measured.step)
    ours, other = (ns_to_ms(x / steps) if steps else math.nan for x in (wall, parts))
    return compared("phases", "step against the sum of its parts", "ms", ours, other, SAME_TIME, "")


def _loop_clock(run: WorldRun, ranks: Sequence[Observed]) -> CrossCheck:
    """Compares the steps with the built-in loop's own clock, on the rank that differs most."""
    found = []
    for rank in ranks:
        result = run.results.get(rank.trace.rank)
        if result is not None:
            loop_ns = float(sum(result["step_ns"][i] for i in rank.parts.step.tolist()))
            found.append((rank.trace.rank, rank.total_ns("wall"), loop_ns))
    name, what = "loop_clock", "steps on the loop's own clock"
    if not found:
        return missing(name, what, "s", "there are no step times from the built-in loop")
    rank_number, ours, other = max(found, key=lambda x: abs(x[2] - x[1]) / max(1.0, x[1]))
    return compared(
        *(name, what, "s", ns_to_s(ours), ns_to_s(other), SAME_TIME),
        f"rank {rank_number}, which differs most" if len(found) > 1 else "",
    )


def _figures_of_records(rank: Observed, group: str | None) -> OfRank:
    buckets = columns.buckets(rank.trace)
    return OfRank(
        gradient_bytes=_gradient_bytes(rank, buckets, group),
        buckets_seen=len(buckets) > 0,
        backward_ns=_mean(rank.measured.work.backward_ns),
        exposed_ns=_mean(rank.measured.exposed_ns),
        same_bytes=SAME_BYTES,
    )


def _mean(values: npt.NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else math.nan


def _gradient_bytes(rank: Observed, buckets: Buckets, group: str | None) -> float:
    """Returns the bytes of gradients that a backward pass exchanged; NaN if unknown.

    The result is the median over the passes of measured steps that exchanged gradients. If the
    trace holds DDP's buckets, the bytes are the sizes of the buckets. Otherwise, the bytes are the
    inputs of the pass's all-reduces in process group ``group``. If ``group`` is None, the
    all-reduces of all groups are used.
    """
    if len(buckets):
        task = backward_of(buckets, columns.finalizations(rank.trace))
        times, sizes = buckets.ready_ns, buckets.bytes
    else:
        table, groups = rank.table, rank.trace.groups.values()
        chosen = (table.graph_task >= 0) & np.isin(table.op, _ALL_REDUCES)
        if group is not None:
            numbers = [
                parts.id for parts in groups if parts.name == group or parts.is_cpu_part_of(group)
            ]
            chosen &= np.isin(table.group, numbers)
        task, times = table.graph_task[chosen], table.issue_ns[chosen]
        sizes = table.bytes_in[chosen]
    steps = columns.steps(rank.trace)
    row = row_containing(steps.begin_ns, steps.end_ns, times)
    inside = (row >= 0) & (task >= 0)
    inside[inside] = np.isin(steps.index[row[inside]], rank.parts.step)
    _, member = np.unique(task[inside], return_inverse=True)
    total = np.bincount(member.reshape(-1), weights=sizes[inside])
    return float(np.median(total)) if len(total) else math.nan


def _network(run: WorldRun, ranks: Sequence[Observed], are_sampled: bool) -> CrossCheck:
    traces = [rank.trace for rank in ranks]
    payload = (
        (math.nan if are_sampled else all_sent_bytes(rank.trace, rank.table))
        if rank.trace.summary is None
        else all_sent_bytes(run.traces[number])
        for number, rank in zip(sorted(run.traces), ranks, strict=True)
    )
    return network_check(run.world_size, traces, payload)


#: Largest relative difference that counts as agreement. The formulas leave out small calls, such as
#: the all-reduce of the gradients' norm.
_SAME = 0.001


def theory_checks(run: WorldRun, ranks: Sequence[Observed]) -> list[CrossCheck]:
    """Compares each operation's bytes per step with a formula, on the rank that differs most.

    Only the built-in loop has formulas. The result is empty for a user's script, and if a
    compressor changes the number of bytes.
    """
    found = [(rank, run.results.get(rank.trace.rank, {}).get("expected")) for rank in ranks]
    known = [(rank, expected) for rank, expected in found if expected]
    operations = {row["op"] for _, expected in known for row in expected}
    return [_check(op, known) for op in sorted(operations)]


def _check(op: str, ranks: Sequence[tuple[Observed, Sequence[Mapping[str, Any]]]]) -> CrossCheck:
    name, what, unit = f"theory_{op}", f"{op} per step by theory", "MB"
    if any(rank.trace.metadata["capture"] == "python" for rank, _ in ranks):
        reason = "Python capture records only DDP's buckets"
        return CrossCheck(name, what, unit, math.nan, math.nan, None, reason)
    compared = []
    for rank, expected in ranks:
        for row in (row for row in expected if row["op"] == op):
            ours, other = _bytes_per_step(rank, op), float(row["size_bytes"])
            compared.append((abs(other - ours), ours, other, row["formula"]))
    _, ours, other, formula = max(compared)
    agrees = None if math.isnan(ours) else abs(other - ours) <= _SAME * other
    return CrossCheck(name, what, unit, ours / 1e6, other / 1e6, agrees, str(formula))


def _bytes_per_step(rank: Observed, op: str) -> float:
    """Returns the bytes of all calls of ``op`` in a step, as a median over measured steps.

    NaN if there are no measured steps. A ``gather`` or ``scatter`` counts with the bytes of one
    rank's part.
    """
    steps, table = columns.steps(rank.trace), rank.table
    if len(rank.parts.step) == 0:
        return math.nan
    size = sizes_bytes(table.op, table.bytes_in, table.bytes_out, np.ones(len(table), np.int64))
    row = row_containing(steps.begin_ns, steps.end_ns, table.issue_ns)
    inside = (row >= 0) & (table.op == OPS.index(op))
    total = np.bincount(row[inside], weights=size[inside], minlength=len(steps))
    return float(np.median(total[np.isin(steps.index, rank.parts.step)]))


Found = Sequence[tuple[Trace, Summary]]

_ALL_REDUCED = (
    "commprof's figure is a mean per step since always-on mode began, and includes all-reduces "
    "that DDP did not issue"
)


def summary_checks(run: WorldRun, found: Found) -> tuple[CrossCheck, ...]:
    """Returns the cross-checks that need only summaries.

    Args:
        run: the traces and results of one world size.
        found: the traces of ``run`` that hold a summary, each with its summary.
    """
    traces = [trace for trace, _ in found]
    payload = [all_sent_bytes(trace) for trace in traces]
    return (
        _summarised_phases(found),
        _summarised_loop_clock(run, found),
        *ddp_checks(traces, lambda i, _: _figures_of_summary(found[i][1])),
        network_check(run.world_size, traces, payload),
    )


def _summarised_phases(found: Found) -> CrossCheck:
    steps = sum(summary.steps.count for _, summary in found)
    wall = sum(summary.steps.sum_ns for _, summary in found)
    parts = sum(
        summary.exposed.sum_ns + sum(phase.sum_ns for phase in summary.phases)
        for _, summary in found
    )
    ours, other = (ns_to_ms(x / steps) if steps else math.nan for x in (wall, parts))
    what = "step against the sum of its parts"
    return compared("phases", what, "ms", ours, other, SAME_TIME, "")


def _summarised_loop_clock(run: WorldRun, found: Found) -> CrossCheck:
    """Compares the steps with the loop's own clock, on the rank that differs most.

    A rank counts only if its summary covers all steps except the first.
    """
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
    name, what = "loop_clock", "steps on the loop's own clock"
    if not clocks:
        reason = "there are no step times from the built-in loop"
        if counts:
            rank, ours_count, own_count = counts[0]
            reason = (
                f"rank {rank}'s summary covers {ours_count} steps, but the loop timed "
                f"{own_count}, not counting the first step"
            )
        return missing(name, what, "s", reason)
    rank, ours, other = max(clocks, key=lambda x: abs(x[2] - x[1]) / max(1.0, x[1]))
    note = f"rank {rank}, which differs most" if len(clocks) > 1 else ""
    return compared(name, what, "s", ns_to_s(ours), ns_to_s(other), SAME_TIME, note)


def _figures_of_summary(summary: Summary) -> OfRank:
    counted = [operation.bytes for operation in summary.operations if operation.op in _ALL_REDUCES]
    knows_passes = summary.steps.count > 0 and summary.steps_end != BACKWARD
    return OfRank(
        gradient_bytes=sum(counted) / (summary.steps.count + 1) if knows_passes else math.nan,
        backward_ns=mean_ns(summary.phases[Phase.BACKWARD]),
        exposed_ns=mean_ns(summary.exposed),
        buckets_seen=False,
        same_bytes=None,
        note=_ALL_REDUCED,
    )
