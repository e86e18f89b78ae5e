"""Use of the links between hosts, from the records and from the interfaces' own counters.

    Gbit/s in flight = bytes of the measured steps * 8 / time in which a collective was in flight
    Gbit/s of the step = the same bytes * 8 / length of these steps

Bytes are payload that gloo's algorithms send to other hosts (`traffic`), from the sizes of
the recorded collectives. The counters include headers and other traffic, and span the whole
capture, so they are compared with the bytes of all recorded collectives, not only of those in the
measured steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.interfaces import (
    Host,
    header_share,
    host_of_each,
    idle_interfaces,
    outward_interface,
    sent_by_interface,
    unknown_hosts,
)
from commprof.analysis.collectives.traffic import sent_to_other_hosts
from commprof.analysis.step.measured import MeasuredWorld, Observed, observed_ranks
from commprof.text import named_ranks
from commprof.trace import columns
from commprof.trace.columns import tables_of
from commprof.trace.ranks import firsts_of, joined, lengths_of, ranks_of, rows_containing
from commprof.trace.reader import Trace
from commprof.units import ns_to_s

#: Counted and recorded bytes agree if they differ by at most this fraction of the recorded bytes,
#: apart from headers and acknowledgements.
SAME_LINK_BYTES = 0.02
#: Bytes of TCP acknowledgements per byte of headers: a host acknowledges every second segment with
#: a segment that has only headers.
_ACKNOWLEDGED = 0.5


@dataclass(frozen=True)
class HostLinks:
    """Use of the links between hosts at one world size; figures per host are means over hosts."""

    #: Number of hosts that had ranks.
    hosts: int
    #: Interfaces that lead to the other hosts.
    interfaces: tuple[str, ...]
    #: Bytes sent per host and measured step.
    step_bytes: float
    #: Rate of one host's outgoing link while it had a collective in flight, waiting included.
    in_flight_gbit_per_s: float
    #: Rate of one host's outgoing link over the whole step.
    step_gbit_per_s: float
    #: Bytes sent by all hosts over the whole capture, according to records; the next field has
    #: them according to interfaces.
    recorded_bytes: float
    counted_bytes: float
    #: Reason why a figure is missing; empty if none is missing.
    note: str
    #: Header bytes per payload byte of full segments, largest value over the interfaces; NaN if
    #: unknown. An interface with offload, which accepts more than a segment at once, may count
    #: fewer headers.
    header_share: float = math.nan
    #: Interfaces that exist on every host, carried nearly nothing there, and are rated no slower
    #: than the interface in use.
    idle: tuple[str, ...] = ()

    @property
    def difference(self) -> float:
        """Relative difference: counted bytes divided by recorded bytes, minus 1; NaN if unknown."""
        if self.recorded_bytes > 0:
            return self.counted_bytes / self.recorded_bytes - 1
        return math.nan

    @property
    def agrees(self) -> bool | None:
        """True if counted bytes differ from recorded bytes by no more than expected.

        A difference of up to 2 % of the recorded bytes is expected. If more bytes were counted than
        recorded, the limit is higher: 2 % plus the share of headers and TCP acknowledgements, which
        is 1.5 times ``header_share``. None if ``difference`` is unknown, or is above 2 % while
        ``header_share`` is unknown.
        """
        if math.isnan(self.difference):
            return None
        if abs(self.difference) <= SAME_LINK_BYTES:
            return True
        if self.difference > 0 and math.isnan(self.header_share):
            return None
        most = self.header_share * (1 + _ACKNOWLEDGED) + SAME_LINK_BYTES
        return 0 < self.difference <= most


def host_links(world_size: int, seen: MeasuredWorld) -> HostLinks | None:
    """Returns the use of the links between hosts; None if all ranks ran on one host.

    Args:
        world_size: ranks of the job.
        seen: the ranks that left a trace.
    """
    ranks = observed_ranks(seen)
    places = host_of_each([rank.trace for rank in ranks])
    by_host = _by_host(ranks, places)
    if len(by_host) < 2:
        return None
    witnesses = [_witness(members) for members in by_host.values()]
    counters = [sent_by_interface(trace) for trace in witnesses]
    names = [outward_interface(sent) for sent in counters]
    counted = [math.nan if n is None else float(c[n]) for n, c in zip(names, counters, strict=True)]
    idle = [idle_interfaces(trace, name) for name, trace in zip(names, witnesses, strict=True)]
    headers = [
        math.nan if name is None else header_share(trace, name)
        for name, trace in zip(names, witnesses, strict=True)
    ]
    known = tuple(sorted({name for name in names if name is not None}))
    problem = _problem(world_size, ranks, places)
    traces, tables = seen.traces, seen.tables
    if problem:
        sent = np.full(sum(lengths_of(tables)), np.nan)
    else:
        sent = sent_to_other_hosts(traces, tables, places)
    recorded = float(sent.sum())
    if not problem and math.isnan(recorded):
        problem = (
            "some collectives are of an unknown kind, or belong to a group that does not hold all "
            "ranks in order"
        )
    uncounted = [
        rank.trace.rank
        for name, members in zip(names, by_host.values(), strict=True)
        for rank in members
        if name is None
    ]
    if not problem and uncounted:
        lost = named_ranks(sorted(uncounted))
        problem = f"the interfaces' counters are missing for the host of {lost}"
    in_steps = _sent_in_steps(seen, sent)
    rates = [_rates(members, in_steps) for members in by_host.values()]
    step_bytes, in_flight, step = (float(np.mean(values)) for values in zip(*rates, strict=True))
    return HostLinks(
        *(len(by_host), known, step_bytes, in_flight, step),
        *(recorded, float(np.sum(counted)), problem),
        header_share=float(np.max(headers)),
        idle=tuple(sorted(set.intersection(*idle))),
    )


def _by_host(
    ranks: Sequence[Observed], places: Sequence[Host | None]
) -> dict[Host, list[Observed]]:
    """Returns the ranks on each host, without ranks whose host is unknown."""
    found: dict[Host, list[Observed]] = {}
    for rank, place in zip(ranks, places, strict=True):
        if place is not None:
            found.setdefault(place, []).append(rank)
    return found


def _witness(members: Sequence[Observed]) -> Trace:
    """Returns the first trace with the counters that a host's ranks share, or else any trace.

    The trace of a killed rank has no counters.
    """
    traces = [rank.trace for rank in members]
    return next((trace for trace in traces if sent_by_interface(trace)), traces[0])


def _problem(world_size: int, ranks: Sequence[Observed], places: Sequence[Host | None]) -> str:
    if len(ranks) < world_size:
        return "not all ranks left a trace"
    if unknown := unknown_hosts([rank.trace for rank in ranks], places):
        return unknown
    if any(group.backend != "gloo" for rank in ranks for group in rank.trace.groups.values()):
        return "which rank sends to which is known only for the backend gloo"
    if any(rank.trace.summary is not None for rank in ranks):
        return "always-on mode kept no record of some collectives"
    return ""


def _sent_in_steps(seen: MeasuredWorld, sent: npt.NDArray[np.float64]) -> dict[int, float]:
    """Returns for each rank the bytes that it sends to other hosts in its measured steps.

    ``sent``: bytes to other hosts of each collective, for the tables of all ranks joined.
    """
    marks = tables_of(seen.traces, columns.steps)
    index, begin_ns, end_ns = (joined(marks, name) for name in ("index", "begin_ns", "end_ns"))
    chosen = np.isin(index, seen.measured.step)
    first = firsts_of(seen.tables)
    of_steps = firsts_of(marks)
    row = rows_containing(begin_ns, end_ns, of_steps, joined(seen.tables, "issue_ns"), first)
    inside = row >= 0
    inside[inside] = chosen[row[inside]]
    total = np.bincount(ranks_of(first)[inside], weights=sent[inside], minlength=len(seen.traces))
    return dict(zip((trace.rank for trace in seen.traces), total.tolist(), strict=True))


def _rates(members: Sequence[Observed], sent: dict[int, float]) -> tuple[float, float, float]:
    """Returns one host's bytes sent per step, rate in flight, and rate over the whole step.

    ``members`` are the ranks on the host. ``sent`` holds, for each rank, the bytes that it sends to
    other hosts in its measured steps. Rates are in Gbit/s. The rate in flight is over the time in
    which a collective was in flight. A figure is NaN if unknown.
    """
    total_bytes = sum(sent[rank.trace.rank] for rank in members)
    # A host's link is taken to be in use while a collective is in flight on one of its ranks.
    flight_s = max(ns_to_s(rank.total_ns("in_flight")) for rank in members)
    wall_s = max(ns_to_s(rank.total_ns("wall")) for rank in members)
    steps = len(members[0].parts.step)
    gbit = total_bytes * 8 / 1e9
    return (
        total_bytes / steps if steps else math.nan,
        gbit / flight_s if flight_s > 0 else math.nan,
        gbit / wall_s if wall_s > 0 else math.nan,
    )
