"""commprof's figures against what others measured of the same run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from commprof.analysis.breakdown import Breakdown
from commprof.analysis.ddp_log import OfRank, ddp_checks
from commprof.analysis.figure_checks import SAME_BYTES, SAME_TIME, CrossCheck, compared, missing
from commprof.analysis.network_check import TRAFFIC, network_check
from commprof.analysis.wire_bytes import sent_bytes
from commprof.trace import columns
from commprof.trace.columns import Collectives
from commprof.trace.reader import Trace
from commprof.trace.run_directory import WorldRun
from commprof.units import ns_to_ms, ns_to_s

_UNRECORDED = f"{TRAFFIC}, and so does what always-on mode summarised without keeping its records"


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
        *ddp_checks(traces, lambda i: _of_rank(ranks[i])),
        _network(run.world_size, ranks),
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


def _of_rank(rank: Observed) -> OfRank:
    return OfRank(
        gradient_bytes=_gradient_bytes(rank),
        backward_ns=_mean(rank.measured.backward_ns),
        exposed_ns=_mean(rank.measured.exposed_ns),
        same_bytes=SAME_BYTES,
    )


def _mean(values: npt.NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else math.nan


def _gradient_bytes(rank: Observed) -> float:
    """Median over the measured steps of what backward passes handed to collectives.

    Or to commprof's DDP hook, where there is one: what is inside may send less, or more often.
    """
    steps, buckets = columns.steps(rank.trace), columns.buckets(rank.trace)
    in_backward = rank.table.graph_task >= 0
    times, sizes = rank.table.issue_ns[in_backward], rank.table.bytes_in[in_backward]
    if len(buckets):
        times, sizes = buckets.ready_ns, buckets.bytes
    row = np.searchsorted(steps.begin_ns, times, side="right") - 1
    inside = row >= 0
    inside[inside] = times[inside] < steps.end_ns[row[inside]]
    total = np.bincount(row[inside], weights=sizes[inside], minlength=len(steps))
    chosen = total[np.isin(steps.index, rank.measured.step)]
    return float(np.median(chosen)) if len(chosen) else math.nan


def _network(world_size: int, ranks: Sequence[Observed]) -> CrossCheck:
    traces = [rank.trace for rank in ranks]
    summarised = any(trace.summary is not None for trace in traces)
    payload = [float(sent_bytes(rank.trace, rank.table).sum()) for rank in ranks]
    return network_check(world_size, traces, payload, _UNRECORDED if summarised else TRAFFIC)
