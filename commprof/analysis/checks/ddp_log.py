"""DDP's own account of its iterations against commprof's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commprof.analysis.align.interfaces import ddp_logs, logged_bucket_sizes
from commprof.analysis.checks.figure_checks import CrossCheck, compared, missing
from commprof.trace.reader import Trace
from commprof.units import ns_to_ms

_WHAT = {
    "ddp_bytes": ("gradients per backward pass by DDP's log", "MB"),
    "ddp_backward": ("backward by DDP's log", "ms"),
    "ddp_exposed": ("exposed by DDP's log", "ms"),
}


@dataclass(frozen=True)
class OfRank:
    """commprof's figures of one rank, times per step; NaN where there is none."""

    #: Per backward pass.
    gradient_bytes: float
    #: They are those of the buckets that commprof's DDP hook saw, whatever was sent for them.
    buckets_seen: bool
    backward_ns: float
    exposed_ns: float
    #: What agreement of the bytes is; None where nothing can be said of it, for ``note``.
    same_bytes: float | None
    note: str = ""


def ddp_checks(
    traces: Sequence[Trace], ours: Callable[[int, str | None], OfRank]
) -> list[CrossCheck]:
    """Three checks against the log of the first rank that has one.

    ours: gives the figures of the trace at that place, and of the process group with that name,
        which is the model's; None where it is not known.
    """
    for i, trace in enumerate(traces):
        logs = ddp_logs(trace)
        if not logs:
            continue
        if len(logs) > 1:
            reason = f"{len(logs)} DDP models: their logs do not add up to a step"
            return [missing(name, *words, reason) for name, words in _WHAT.items()]
        group = logs[0].get("group_name")
        return _of(trace.rank, logs[0], ours(i, group if isinstance(group, str) else None))
    reason = "no DDP model was trained while capture ran"
    if not all(trace.complete for trace in traces):
        reason = (
            "no trace holds a DDP log, which is written when capture stops: not all were closed"
        )
    return [missing(name, *words, reason) for name, words in _WHAT.items()]


def _of(rank: int, log: Mapping[str, Any], ours: OfRank) -> list[CrossCheck]:
    where = f"rank {rank}"
    sampled = f"{where}, up to iteration {_int(log, 'iteration')}"
    key = "rebuilt_bucket_sizes" if log.get("rebuilt_bucket_sizes") else "bucket_sizes"
    numbers = logged_bucket_sizes(log, key)
    backward_ns = _int(log, "avg_backward_compute_time")
    exposed_ns = _int(log, "avg_backward_comm_time") - _int(
        log, "avg_backward_compute_comm_overlap_time"
    )
    checks = [_bytes(sum(numbers), log, ours, where)]
    for name, value_ns, other_ns in (
        ("ddp_backward", ours.backward_ns, backward_ns),
        ("ddp_exposed", ours.exposed_ns, exposed_ns),
    ):
        if not backward_ns > 0 or math.isnan(value_ns):
            checks.append(missing(name, *_WHAT[name], "DDP's log holds no times"))
            continue
        # No verdict: DDP sampled other steps, warm-up among them.
        times = ns_to_ms(value_ns), ns_to_ms(other_ns)
        checks.append(compared(name, *_WHAT[name], *times, None, sampled))
    return checks


def _bytes(logged: int, log: Mapping[str, Any], ours: OfRank, where: str) -> CrossCheck:
    own = log.get("own_exchange")
    if isinstance(own, str) and own and not ours.buckets_seen:
        # What it sends, how often and in which type is its own affair.
        return missing("ddp_bytes", *_WHAT["ddp_bytes"], f"{own} decides what is sent")
    if not logged:
        return missing("ddp_bytes", *_WHAT["ddp_bytes"], "DDP's log names no bucket sizes")
    if _int(log, "sparse_modules"):
        reason = "DDP's log holds sparse gradients as if they were dense"
        return missing("ddp_bytes", *_WHAT["ddp_bytes"], reason)
    note = f"{where}; {ours.note}" if ours.note else where
    figures = ours.gradient_bytes / 1e6, logged / 1e6
    return compared("ddp_bytes", *_WHAT["ddp_bytes"], *figures, ours.same_bytes, note)


def _int(log: Mapping[str, Any], key: str) -> int:
    value = log.get(key)
    return value if isinstance(value, int) else 0
