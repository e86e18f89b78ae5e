"""Whether, and how well, the ranks' times can be compared."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from commprof.analysis.align.clock_map import SAME_CLOCK, ClockMap, fit
from commprof.analysis.late.arrivals import clocks_are_shared
from commprof.trace.columns import Ints
from commprof.trace.reader import Trace
from commprof.trace.schema import TIME_IN_VALUE, Kind, Records
from commprof.trace.stretches import Stretches
from commprof.units import ns_to_us

#: Boot and time namespace; a rank that knows neither stands for itself.
_Clock = tuple[str, str] | int


def rank_clocks(traces: Sequence[Trace]) -> list[ClockMap] | None:
    """For each rank the map from its clock to rank 0's; None if one of them is not known.

    Ranks of one boot and time namespace have one clock, so that the comparisons of all of them
    make its map, and nothing is to be compared where rank 0 is among them.
    """
    if clocks_are_shared(traces):
        return [SAME_CLOCK] * len(traces)
    ranks_of: dict[_Clock, list[Trace]] = {}
    for trace in traces:
        ranks_of.setdefault(_clock(trace), []).append(trace)
    maps = {
        clock: SAME_CLOCK if any(rank.rank == 0 for rank in ranks) else comparisons(ranks)
        for clock, ranks in ranks_of.items()
    }
    found = [maps[_clock(trace)] for trace in traces]
    known = [clock for clock in found if clock is not None]
    return known if len(known) == len(traces) else None


def on_common_clock(traces: Sequence[Trace], clocks: Sequence[ClockMap]) -> list[Trace]:
    """The traces with all times by rank 0's clock; what has that clock is left as it is.

    Lengths of time change by the clocks' drift against each other, which is parts in a million.
    The comparisons themselves keep the times at which they were made.
    """
    return [
        trace
        if clock.is_same_clock
        else dataclasses.replace(
            trace,
            records=_moved(trace.records, clock),
            kernels=_moved_kernels(trace.kernels, clock),
        )
        for trace, clock in zip(traces, clocks, strict=True)
    ]


def clock_error_us(clocks: Sequence[ClockMap] | None, traces: Sequence[Trace]) -> float:
    """Worst bound on a rank's clock against rank 0's when it issued a collective, in µs.

    The traces are as they were taken. 0 where all have one clock; NaN where clocks cannot be
    compared.
    """
    if clocks is None:
        return math.nan
    worst_ns = [
        clock.error(_issued_ns(trace)).max(initial=0.0)
        for clock, trace in zip(clocks, traces, strict=True)
    ]
    return ns_to_us(float(max(worst_ns)))


def comparisons(traces: Sequence[Trace]) -> ClockMap | None:
    """The map through all comparisons that ranks of one clock made; None if there are none."""
    records = np.concatenate(
        [trace.records[trace.records["kind"] == Kind.CLOCK] for trace in traces]
    )
    if len(records) == 0:
        return None
    # The offset is signed: its two's complement is what the record holds.
    offset = records["value"].astype(np.uint64).view(np.int64)
    at, error = (records[name].astype(np.int64) for name in ("timestamp_ns", "bytes_in"))
    return fit(at, offset, error)


def _issued_ns(trace: Trace) -> Ints:
    issues = trace.records["kind"] == Kind.ISSUE
    return trace.records["timestamp_ns"][issues].astype(np.int64)


def _clock(trace: Trace) -> _Clock:
    machine = trace.metadata["machine"]
    key = machine["boot_id"], machine["time_namespace"]
    return key if any(key) else trace.rank


def _moved_kernels(kernels: Stretches | None, clock: ClockMap) -> Stretches | None:
    if kernels is None:
        return None
    return Stretches(clock.to_common(kernels.begin_ns), clock.to_common(kernels.end_ns))


def _moved(records: Records, clock: ClockMap) -> Records:
    moved = records.copy()
    for field, rows in (
        ("timestamp_ns", records["kind"] != Kind.CLOCK),
        ("value", np.isin(records["kind"], TIME_IN_VALUE) & (records["value"] > 0)),
    ):
        moved[field][rows] = clock.to_common(records[field][rows].astype(np.int64))
    return moved
