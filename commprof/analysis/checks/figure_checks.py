"""Compares commprof's figures with DDP's log and with the kernel's network counters."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commprof.analysis.align.interfaces import (
    LOOPBACK,
    Host,
    cross_check_sources,
    ddp_logs,
    host_of_each,
    logged_bucket_sizes,
    outward_interface,
    sent_by_interface,
    unknown_hosts,
)
from commprof.text import counted
from commprof.trace.reader import Trace
from commprof.units import ns_to_ms

#: Largest relative difference of times, and of bytes, that counts as agreement.
SAME_TIME = 0.005
SAME_BYTES = 0.05


@dataclass(frozen=True)
class CrossCheck:
    """A figure of commprof, and a second measurement of the same quantity."""

    #: One of ``phases``, ``loop_clock``, ``ddp_bytes``, ``ddp_backward``, ``ddp_exposed`` and
    #: ``network``, or ``theory_`` with the name of an operation.
    name: str
    #: Name of the figure, in words.
    what: str
    #: "ms", "s" or "MB".
    unit: str
    #: commprof's figure; NaN if there is none.
    ours: float
    #: The other measurement; NaN if there is none.
    other: float
    #: None if the figures cannot be judged.
    agrees: bool | None
    #: Why a figure is missing, or how the definitions of the two figures differ.
    note: str

    @property
    def difference(self) -> float:
        """Relative difference: the other figure divided by commprof's figure, minus 1.

        NaN if a figure is missing, or if commprof's figure is 0.
        """
        if self.ours > 0 and not math.isnan(self.other):
            return self.other / self.ours - 1
        return math.nan

    @property
    def percent(self) -> str:
        """The relative difference as text, such as ``+1.0%``; empty if it is NaN."""
        return "" if math.isnan(self.difference) else f"{self.difference:+.1%}"


def compared(
    name: str, what: str, unit: str, ours: float, other: float, tolerance: float | None, note: str
) -> CrossCheck:
    """Returns a check of two figures; they agree if they differ by up to ``tolerance * ours``."""
    agrees = None
    if tolerance is not None and not math.isnan(ours) and not math.isnan(other):
        agrees = abs(other - ours) <= tolerance * ours
    return CrossCheck(name, what, unit, ours, other, agrees, note)


def missing(name: str, what: str, unit: str, reason: str) -> CrossCheck:
    """Returns a check without figures; ``reason`` says why the figures are missing."""
    return CrossCheck(name, what, unit, math.nan, math.nan, None, reason)


def undecided(check: CrossCheck) -> CrossCheck:
    """Returns the check without a verdict."""
    return dataclasses.replace(check, agrees=None)


_DDP_FIGURES = {
    "ddp_bytes": ("gradients per backward pass in DDP's log", "MB"),
    "ddp_backward": ("backward in DDP's log", "ms"),
    "ddp_exposed": ("exposed communication in DDP's log", "ms"),
}


@dataclass(frozen=True)
class OfRank:
    """commprof's figures of one rank. Durations are per step. A missing figure is NaN."""

    #: Bytes of gradients per backward pass.
    gradient_bytes: float
    #: True if ``gradient_bytes`` is the size of the buckets that commprof's DDP hook recorded. The
    #: user's own hook may send fewer bytes.
    buckets_seen: bool
    backward_ns: float
    exposed_ns: float
    #: Tolerance of the bytes; None if agreement cannot be judged. ``note`` gives the reason.
    same_bytes: float | None
    note: str = ""


def ddp_checks(
    traces: Sequence[Trace], ours: Callable[[int, str | None], OfRank]
) -> list[CrossCheck]:
    """Compares three figures with the DDP log of the first rank that has a DDP log.

    Args:
        traces: traces of the ranks.
        ours: returns commprof's figures of a trace. Its arguments are the trace's position in
            ``traces``, and the name of the model's process group; the name is None if unknown.
    """
    for i, trace in enumerate(traces):
        logs = ddp_logs(trace)
        if not logs:
            continue
        if len(logs) > 1:
            reason = f"the logs of {len(logs)} DDP models do not give the figures of a step"
            return [missing(name, *words, reason) for name, words in _DDP_FIGURES.items()]
        group = logs[0].get("group_name")
        return _of(trace.rank, logs[0], ours(i, group if isinstance(group, str) else None))
    reason = "no DDP model was trained while capture ran"
    if any(cross_check_sources(trace).get("ddp_models") for trace in traces):
        reason = "the DDP models that were trained have no log"
    if not all(trace.complete for trace in traces):
        reason = (
            "no trace holds a DDP log: the log is written when capture stops, and some traces were "
            "not closed"
        )
    return [missing(name, *words, reason) for name, words in _DDP_FIGURES.items()]


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
            source = "the trace" if backward_ns > 0 else "DDP's log"
            checks.append(missing(name, *_DDP_FIGURES[name], f"{source} holds no times"))
            continue
        # There is no verdict, because DDP sampled other steps, including warm-up steps.
        times = ns_to_ms(value_ns), ns_to_ms(other_ns)
        checks.append(compared(name, *_DDP_FIGURES[name], *times, None, sampled))
    return checks


def _bytes(logged: int, log: Mapping[str, Any], ours: OfRank, where: str) -> CrossCheck:
    own = log.get("own_exchange")
    if isinstance(own, str) and own and not ours.buckets_seen:
        return missing(
            "ddp_bytes",
            *_DDP_FIGURES["ddp_bytes"],
            f"the bytes sent may differ from DDP's bucket sizes: {own} decides what is sent",
        )
    if not logged:
        return missing("ddp_bytes", *_DDP_FIGURES["ddp_bytes"], "DDP's log names no bucket sizes")
    if _int(log, "sparse_modules"):
        reason = "DDP's log counts sparse gradients as if they were dense"
        return missing("ddp_bytes", *_DDP_FIGURES["ddp_bytes"], reason)
    note = f"{where}; {ours.note}" if ours.note else where
    figures = ours.gradient_bytes / 1e6, logged / 1e6
    return compared("ddp_bytes", *_DDP_FIGURES["ddp_bytes"], *figures, ours.same_bytes, note)


def _int(log: Mapping[str, Any], key: str) -> int:
    value = log.get(key)
    return value if isinstance(value, int) else 0


TRAFFIC = "headers and other traffic count too"
_SENT_BYTES = "bytes sent by the network interface"


def network_check(
    world_size: int, traces: Sequence[Trace], payload_bytes: Iterable[float], note: str = TRAFFIC
) -> CrossCheck:
    """Compares the ranks' payload with the counters of the network interfaces.

    The counters include other traffic. If the counters exceed the payload by too much, the check is
    undecided.

    Args:
        world_size: number of ranks of the job. If a rank left no trace, the check has no figures.
        traces: traces of the ranks.
        payload_bytes: for each trace, the least number of bytes that the rank's calls send; NaN if
            unknown. They are computed only if the counters are there.
        note: how the definitions of the two figures differ.
    """
    if len(traces) < world_size:
        return _missing("some ranks left no trace")
    largest = max((group.size for trace in traces for group in trace.groups.values()), default=0)
    if largest > len(traces):
        return _missing(f"a process group has {largest} ranks, but only {len(traces)} left a trace")
    sent = [sent_by_interface(trace) for trace in traces]
    if not all(sent):
        return _missing("some traces lack the interfaces' counters")
    if any(group.backend != "gloo" for trace in traces for group in trace.groups.values()):
        return _missing("a backend other than gloo may use other interfaces")
    places = host_of_each(traces)
    if unknown := unknown_hosts(traces, places):
        return _missing(unknown)
    names, total_bytes, hosts = _sent_by_hosts(places, sent)
    if not names:
        return _missing("no collective of this run needs a network interface")
    payload = sum(payload_bytes)
    if math.isnan(payload):
        return _missing("the bytes that some collectives must send are not known")
    label = f"bytes sent by {' and '.join(sorted(names))}, {counted(hosts, 'host')}"
    check = compared("network", label, "MB", payload / 1e6, total_bytes / 1e6, SAME_BYTES, note)
    return undecided(check) if total_bytes > payload and not check.agrees else check


def _sent_by_hosts(
    places: Sequence[Host | None], sent: Sequence[Mapping[str, int]]
) -> tuple[set[str], int, int]:
    """Returns the interfaces in use, the bytes that they sent, and the number of hosts."""
    hosts: dict[Host | None, list[Mapping[str, int]]] = {}
    for place, counters in zip(places, sent, strict=True):
        hosts.setdefault(place, []).append(counters)
    names, total_bytes = set(), 0
    for members in hosts.values():
        # All ranks of a host read the same counter. The rank that captured longest has the highest
        # value.
        counters = {name: max(of.get(name, 0) for of in members) for name in set().union(*members)}
        for name in _interfaces_used(counters, len(hosts), len(members)):
            names.add(name)
            total_bytes += counters[name]
    return names, total_bytes, len(hosts)


def _interfaces_used(sent: Mapping[str, int], hosts: int, ranks_here: int) -> list[str]:
    """Returns ``lo`` for traffic within a host, and the busiest interface for other hosts."""
    used = [LOOPBACK] if ranks_here > 1 and LOOPBACK in sent else []
    outward = outward_interface(sent)
    if hosts > 1 and outward is not None:
        used.append(outward)
    return used


def _missing(reason: str) -> CrossCheck:
    return missing("network", _SENT_BYTES, "MB", reason)
