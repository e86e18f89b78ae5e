"""Use of the links between hosts, from the records and from the interfaces' counters.

    Gbit/s in flight = bytes of the measured steps * 8 / time in which a collective was in flight
    Gbit/s of the step = the same bytes * 8 / length of these steps

Bytes are the payload that gloo sends to other hosts, computed from the recorded collectives
(`traffic`). The counters span the whole capture, so they are compared with the bytes of all
recorded collectives. The counters also include headers and other traffic.
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

#: Counted and recorded bytes agree if they differ by at most this fraction, apart from headers and
#: acknowledgements.
SAME_LINK_BYTES = 0.02
#: Bytes of TCP acknowledgements per byte of headers: a host acknowledges every second segment with
#: a segment that has only headers.
_ACKNOWLEDGED = 0.5


@dataclass(frozen=True)
class HostLinks:
    """Use of the links between hosts at one world size; figures per host are means over hosts."""

    hosts: int
    #: Interfaces that lead to the other hosts.
    interfaces: tuple[str, ...]
    #: Bytes sent per host and measured step.
    step_bytes: float
    #: Rate of one host's outgoing link while the host had a collective in flight. This time
    #: includes waiting for other ranks.
    in_flight_gbit_per_s: float
    #: Rate of one host's outgoing link over the whole step.
    step_gbit_per_s: float
    #: Bytes that all hosts sent during capture, according to the records.
    recorded_bytes: float
    #: Bytes that all hosts sent during capture, according to the interfaces' counters.
    counted_bytes: float
    #: Reason why a figure is missing; empty if none is missing.
    note: str
    #: Header bytes per payload byte of full TCP segments, as the largest value of all interfaces;
    #: NaN if unknown. An interface with segmentation offload may count fewer headers.
    header_share: float = math.nan
    #: Interfaces that every host has and hardly uses, and that are not known to be rated slower
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

        A difference of up to 2 % is always accepted. If more bytes were counted than recorded, 1.5
        times ``header_share`` is added to this limit, for headers and TCP acknowledgements. None if
        a needed figure is unknown.
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
    """Returns the use of the links between hosts; None if fewer than two hosts are known.

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
    found: dict[Host, list[Observed]] = {}
    for rank, place in zip(ranks, places, strict=True):
        if place is not None:
            found.setdefault(place, []).append(rank)
    return found


def _witness(members: Sequence[Observed]) -> Trace:
    """Returns a host's first trace with counters, or else the host's first trace.

    The trace of a killed rank has no counters.
    """
    traces = [rank.trace for rank in members]
    return next((trace for trace in traces if sent_by_interface(trace)), traces[0])


def _problem(world_size: int, ranks: Sequence[Observed], places: Sequence[Host | None]) -> str:
    if len(ranks) < world_size:
        return "some ranks left no trace"
    if unknown := unknown_hosts([rank.trace for rank in ranks], places):
        return unknown
    if any(group.backend != "gloo" for rank in ranks for group in rank.trace.groups.values()):
        return "the receivers of each rank's bytes are known only for the backend gloo"
    if any(rank.trace.summary is not None for rank in ranks):
        return "always-on mode kept no record of some collectives"
    return ""


def _sent_in_steps(seen: MeasuredWorld, sent: npt.NDArray[np.float64]) -> dict[int, float]:
    """Returns the bytes that each rank sends to other hosts in its measured steps.

    ``sent``: bytes that each collective of all ranks sends to other hosts.
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
    """Returns one host's bytes per step, and its rates in Gbit/s in flight and over the step.

    A figure is NaN if unknown. ``sent``: bytes that each rank sends to other hosts in its measured
    steps.
    """
    total_bytes = sum(sent[rank.trace.rank] for rank in members)
    # The link counts as in use while the rank with the longest time in flight has a collective in
    # flight.
    flight_s = max(ns_to_s(rank.total_ns("in_flight")) for rank in members)
    wall_s = max(ns_to_s(rank.total_ns("wall")) for rank in members)
    steps = len(members[0].parts.step)
    gbit = total_bytes * 8 / 1e9
    return (
        total_bytes / steps if steps else math.nan,
        gbit / flight_s if flight_s > 0 else math.nan,
        gbit / wall_s if wall_s > 0 else math.nan,
    )
