"""commprof's figures against what others measured of the same run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from commprof.analysis.checks.ddp_log import OfRank, ddp_checks
from commprof.analysis.checks.figure_checks import (
    SAME_BYTES,
    SAME_TIME,
    CrossCheck,
    compared,
    missing,
)
from commprof.analysis.checks.network_check import network_check
from commprof.analysis.collectives.wire_bytes import all_sent_bytes
from commprof.analysis.late.arrivals import backward_of
from commprof.analysis.step.breakdown import Breakdown
from commprof.trace import columns
from commprof.trace.columns import Buckets, Collectives
from commprof.trace.reader import Trace
from commprof.trace.run.run_directory import WorldRun
from commprof.trace.schema import OPS
from commprof.units import ns_to_ms, ns_to_s

#: What DDP exchanges its buckets by.
_ALL_REDUCES = [code for code, name in enumerate(OPS) if name.startswith("all_reduce")]


@dataclass(frozen=True)
class Observed:
    """One rank over the measured steps, and its whole trace."""

    trace: Trace
    table: Collectives
    measured: Breakdown


def cross_checks(run: WorldRun, ranks: Sequence[Observed]) -> tuple[CrossCheck, ...]:
    """All checks of one world size, each in one line; what is missing says so."""
    traces = [rank.trace for rank in ranks]
    return (
        _phases(ranks),
        _loop_clock(run, ranks),
        *ddp_checks(traces, lambda i, group: _of_rank(ranks[i], group)),
        _network(run, ranks),
    )


def _phases(ranks: Sequence[Observed]) -> CrossCheck:
    """Time that was counted twice would make the parts more than the step."""
    wall = parts = 0.0
    for rank in ranks:
        part = rank.measured
        wall += float(part.wall_ns.sum())
        for values in (
            *(part.data_ns, part.forward_ns, part.backward_ns),
            *(part.exposed_ns, part.optimizer_ns, part.other_ns),
        ):
            parts += float(np.maximum(values, 0).sum())
    steps = sum(len(rank.measured.step) for rank in ranks)
    ours, other = (ns_to_ms(x / steps) if steps else math.nan for x in (wall, parts))
    return compared("phases", "step against the sum of its parts", "ms", ours, other, SAME_TIME, "")


def _loop_clock(run: WorldRun, ranks: Sequence[Observed]) -> CrossCheck:
    """The built-in loop times its steps by itself; the rank that differs most is shown."""
    found = []
    for rank in ranks:
        result = run.results.get(rank.trace.rank)
        if result is not None:
            loop_ns = float(sum(result["step_ns"][i] for i in rank.measured.step.tolist()))
            found.append((rank.trace.rank, float(rank.measured.wall_ns.sum()), loop_ns))
    name, what = "loop_clock", "steps by the loop's own clock"
    if not found:
        return missing(name, what, "s", "the loop left no account of its own")
    rank_number, ours, other = max(found, key=lambda x: abs(x[2] - x[1]) / max(1.0, x[1]))
    return compared(
        *(name, what, "s", ns_to_s(ours), ns_to_s(other), SAME_TIME),
        f"rank {rank_number}, which differs most" if len(found) > 1 else "",
    )


def _of_rank(rank: Observed, group: str | None) -> OfRank:
    buckets = columns.buckets(rank.trace)
    return OfRank(
        gradient_bytes=_gradient_bytes(rank, buckets, group),
        buckets_seen=len(buckets) > 0,
        backward_ns=_mean(rank.measured.backward_ns),
        exposed_ns=_mean(rank.measured.exposed_ns),
        same_bytes=SAME_BYTES,
    )


def _mean(values: npt.NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else math.nan


def _gradient_bytes(rank: Observed, buckets: Buckets, group: str | None) -> float:
    """Median over the backward passes of the measured steps of what they all-reduced.

    Or handed to commprof's DDP hook, where there is one: what is inside may send less, or more
    often. A pass that synchronises nothing, as in ``no_sync``, counts for nothing.
    """
    if len(buckets):
        task = backward_of(buckets, columns.finalizations(rank.trace))
        times, sizes = buckets.ready_ns, buckets.bytes
    else:
        table, groups = rank.table, rank.trace.groups.values()
        chosen = (table.graph_task >= 0) & np.isin(table.op, _ALL_REDUCES)
        if group is not None:
            chosen &= np.isin(table.group, [one.id for one in groups if one.name == group])
        task, times = table.graph_task[chosen], table.issue_ns[chosen]
        sizes = table.bytes_in[chosen]
    steps = columns.steps(rank.trace)
    row = np.searchsorted(steps.begin_ns, times, side="right") - 1
    inside = (row >= 0) & (task >= 0)
    inside[inside] = times[inside] < steps.end_ns[row[inside]]
    inside[inside] = np.isin(steps.index[row[inside]], rank.measured.step)
    _, member = np.unique(task[inside], return_inverse=True)
    total = np.bincount(member.reshape(-1), weights=sizes[inside])
    return float(np.median(total)) if len(total) else math.nan


def _network(run: WorldRun, ranks: Sequence[Observed]) -> CrossCheck:
    traces = [rank.trace for rank in ranks]
    payload = [
        all_sent_bytes(rank.trace, rank.table)
        if rank.trace.summary is None
        else all_sent_bytes(run.traces[number])
        for number, rank in zip(sorted(run.traces), ranks, strict=True)
    ]
    return network_check(run.world_size, traces, payload)
