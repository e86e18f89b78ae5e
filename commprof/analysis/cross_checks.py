"""commprof's figures against what others measured of the same run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from commprof.analysis.breakdown import Breakdown
from commprof.analysis.interfaces import (
    LOOPBACK,
    host_of,
    outward_interface,
    sent_by_interface,
    witnesses,
)
from commprof.analysis.wire_bytes import sent_bytes
from commprof.trace import columns
from commprof.trace.columns import Collectives
from commprof.trace.reader import Trace
from commprof.trace.run_directory import WorldRun
from commprof.units import ns_to_ms, ns_to_s

#: Difference that counts as agreement: of clocks and sums, of bytes, of DDP's sampled times.
_SAME_TIME = 0.005
_SAME_BYTES = 0.05

_TRAFFIC = "headers and other traffic count too"
_UNRECORDED = f"{_TRAFFIC}, and so does what always-on mode summarised without keeping its records"


@dataclass(frozen=True)
class CrossCheck:
    """One figure, measured twice."""

    #: ``phases``, ``loop_clock``, ``ddp_bytes``, ``ddp_backward``, ``ddp_exposed``, ``network``.
    name: str
    #: What is compared, in words.
    what: str
    #: "ms", "s" or "MB".
    unit: str
    #: commprof's figure; NaN if there is none.
    ours: float
    #: The other one; NaN if there is none.
    other: float
    #: None where there is nothing to compare, or no tolerance that would be fair.
    agrees: bool | None
    #: Why a figure is missing, or how the two differ by definition.
    note: str

    @property
    def difference(self) -> float:
        """Other over ours, less 1; NaN without both."""
        if self.ours > 0 and not math.isnan(self.other):
            return self.other / self.ours - 1
        return math.nan


@dataclass(frozen=True)
class Observed:
    """One rank over the measured steps, and its whole trace."""

    trace: Trace
    table: Collectives
    measured: Breakdown


def cross_checks(run: WorldRun, ranks: Sequence[Observed]) -> tuple[CrossCheck, ...]:
    """All checks of one world size, each in one line; what is missing says so."""
    return (
        _phases(ranks),
        _loop_clock(run, ranks),
        *_ddp(ranks),
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
    return _compared(
        "phases", "step against the sum of its parts", "ms", ours, other, _SAME_TIME, ""
    )


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
        return _missing(name, what, "s", "the loop left no account of its own")
    rank_number, ours, other = max(found, key=lambda x: abs(x[2] - x[1]) / max(1.0, x[1]))
    return _compared(
        *(name, what, "s", ns_to_s(ours), ns_to_s(other), _SAME_TIME),
        f"rank {rank_number}, which differs most" if len(found) > 1 else "",
    )


def _ddp(ranks: Sequence[Observed]) -> list[CrossCheck]:
    """DDP's log of the first rank that has one."""
    what = {
        "ddp_bytes": ("gradients per step by DDP's log", "MB"),
        "ddp_backward": ("backward by DDP's log", "ms"),
        "ddp_exposed": ("exposed by DDP's log", "ms"),
    }
    for rank in ranks:
        found = witnesses(rank.trace).get("ddp_logs")
        logs = [log for log in found if isinstance(log, dict)] if isinstance(found, list) else []
        if not logs:
            continue
        if len(logs) > 1:
            reason = f"{len(logs)} DDP models: their logs do not add up to a step"
            return [_missing(name, *words, reason) for name, words in what.items()]
        return _ddp_of(rank, logs[0], what)
    reason = "no trace holds a DDP log: no DDP model was called, or the traces were not closed"
    return [_missing(name, *words, reason) for name, words in what.items()]


def _ddp_of(
    rank: Observed, log: Mapping[str, Any], what: Mapping[str, tuple[str, str]]
) -> list[CrossCheck]:
    where = f"rank {rank.trace.rank}"
    sampled = f"{where}, up to iteration {_int(log, 'iteration')}"
    sizes = str(log.get("rebuilt_bucket_sizes") or log.get("bucket_sizes") or "")
    numbers = [int(size) for size in sizes.split(",") if size.strip().isdecimal()]
    ours_mb = _gradient_bytes(rank) / 1e6
    backward_ns = _int(log, "avg_backward_compute_time")
    exposed_ns = _int(log, "avg_backward_comm_time") - _int(
        log, "avg_backward_compute_comm_overlap_time"
    )
    ours = rank.measured
    times = (
        ("ddp_backward", ours.backward_ns, backward_ns),
        ("ddp_exposed", ours.exposed_ns, exposed_ns),
    )
    checks = [
        _compared("ddp_bytes", *what["ddp_bytes"], ours_mb, sum(numbers) / 1e6, _SAME_BYTES, where)
        if numbers
        else _missing("ddp_bytes", *what["ddp_bytes"], "DDP's log names no bucket sizes")
    ]
    for name, values, other_ns in times:
        if not backward_ns > 0 or len(values) == 0:
            checks.append(_missing(name, *what[name], "DDP's log holds no times"))
            continue
        mean_ms = ns_to_ms(float(values.mean()))
        # No verdict: DDP sampled other steps, warm-up among them.
        checks.append(_compared(name, *what[name], mean_ms, ns_to_ms(other_ns), None, sampled))
    return checks


def _int(log: Mapping[str, Any], key: str) -> int:
    value = log.get(key)
    return value if isinstance(value, int) else 0


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
    """What the kernel counted on the interfaces against what the collectives must send."""
    what = "bytes sent by the network interface"
    if len(ranks) < world_size:
        return _missing("network", what, "MB", "not all ranks left a trace")
    sent = [sent_by_interface(rank.trace) for rank in ranks]
    if not all(sent):
        return _missing("network", what, "MB", "not every trace holds the interfaces' counters")
    if any(group.backend != "gloo" for rank in ranks for group in rank.trace.groups.values()):
        return _missing(
            "network", what, "MB", "a backend other than gloo need not use these interfaces"
        )
    hosts: dict[tuple[str, str], list[dict[str, int]]] = {}
    for rank, counters in zip(ranks, sent, strict=True):
        hosts.setdefault(host_of(rank.trace), []).append(counters)
    names, total = set(), 0
    for counters, *others in hosts.values():
        # The ranks of a host share its counters: one of them speaks for all.
        for name in _interfaces_used(counters, len(hosts), 1 + len(others)):
            names.add(name)
            total += counters[name]
    if not names:
        return _missing("network", what, "MB", "no collective of this run needs one")
    payload = sum(float(sent_bytes(rank.trace, rank.table).sum()) for rank in ranks)
    if math.isnan(payload):
        return _missing("network", what, "MB", "it is not known what some collectives must send")
    plural = "s" if len(hosts) > 1 else ""
    label = f"bytes sent by {' and '.join(sorted(names))}, {len(hosts)} host{plural}"
    summarised = any(rank.trace.summary is not None for rank in ranks)
    note = _UNRECORDED if summarised else _TRAFFIC
    check = _compared("network", label, "MB", payload / 1e6, total / 1e6, _SAME_BYTES, note)
    return check if not check.difference > _SAME_BYTES else _undecided(check)


def _interfaces_used(sent: Mapping[str, int], hosts: int, ranks_here: int) -> list[str]:
    """Where this host's ranks send: to each other through ``lo``, to others where most went."""
    used = [LOOPBACK] if ranks_here > 1 and LOOPBACK in sent else []
    outward = outward_interface(sent)
    if hosts > 1 and outward is not None:
        used.append(outward)
    return used


def _compared(
    name: str, what: str, unit: str, ours: float, other: float, tolerance: float | None, note: str
) -> CrossCheck:
    agrees = None
    if tolerance is not None and not math.isnan(ours) and not math.isnan(other):
        agrees = abs(other - ours) <= tolerance * ours
    return CrossCheck(name, what, unit, ours, other, agrees, note)


def _missing(name: str, what: str, unit: str, reason: str) -> CrossCheck:
    return CrossCheck(name, what, unit, math.nan, math.nan, None, reason)


def _undecided(check: CrossCheck) -> CrossCheck:
    return dataclasses.replace(check, agrees=None)
