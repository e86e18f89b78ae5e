"""Maps the ranks' clocks to rank 0's clock, with a bound on the error."""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.arrivals import clocks_are_shared
from commprof.trace.columns import Ints
from commprof.trace.packed import columns_of, fields_of, packed
from commprof.trace.reader import Trace
from commprof.trace.schema import MOST_DRIFT, UNSEEN_WANDER, Kind, Records
from commprof.units import ns_to_us

Floats = npt.NDArray[np.float64]

#: A clock comparison is left out if its error bound is more than this many times the bound that
#: better comparisons give for the same time.
_DISTURBED = 3.0
#: Of comparisons that are closer together than this, only the best is kept, because such
#: comparisons do not determine the drift.
_APART_NS = 100_000_000


@dataclass(frozen=True)
class ClockMap:
    """Maps one clock's times to rank 0's clock, based on comparisons at certain times.

    Between two comparisons, the offset is interpolated. Before the first comparison and after the
    last, the offset changes by ``rate`` ns per ns. The map of rank 0's own clock has no
    comparisons.
    """

    #: Times of the comparisons on this clock, ascending.
    at_ns: Ints
    #: Rank 0's clock minus this clock, at each comparison.
    offset_ns: Ints
    error_ns: Floats
    #: Drift before the first comparison and after the last: ns of offset gained per ns.
    rate: float
    rate_error: float
    #: Smallest change of drift, in ns per ns, that explains the comparisons; 0 if a constant drift
    #: explains them.
    wander: float

    @property
    def is_same_clock(self) -> bool:
        """True if this clock is rank 0's own, so that nothing needs to be mapped."""
        return len(self.at_ns) == 0

    def to_common(self, own_ns: Ints) -> Ints:
        """Converts times of this clock to rank 0's clock."""
        if self.is_same_clock:
            return own_ns
        since = (own_ns - self.at_ns[0]).astype(np.float64)
        if len(self.at_ns) == 1:
            return own_ns + self.offset_ns[0] + np.rint(self.rate * since).astype(np.int64)
        knots = (self.at_ns - self.at_ns[0]).astype(np.float64)
        gained = np.interp(since, knots, (self.offset_ns - self.offset_ns[0]).astype(np.float64))
        gained += self.rate * (np.minimum(0, since) + np.maximum(0, since - knots[-1]))
        return own_ns + self.offset_ns[0] + np.rint(gained).astype(np.int64)

    def error(self, own_ns: Ints) -> Floats:
        """Returns a bound on the error of :meth:`to_common`, in ns, at times of this clock.

        The bound grows with the time to the nearest comparison: by ``wander`` between comparisons,
        and by ``rate_error`` + ``wander`` before the first comparison and after the last.
        """
        if self.is_same_clock:
            return np.zeros(len(own_ns))
        since = (own_ns - self.at_ns[0]).astype(np.float64)
        knots = (self.at_ns - self.at_ns[0]).astype(np.float64)
        right = np.clip(np.searchsorted(knots, since), 0, len(knots) - 1)
        left = np.maximum(0, right - 1)
        distance = np.minimum(np.abs(since - knots[left]), np.abs(since - knots[right]))
        outside = (since < knots[0]) | (since > knots[-1])
        growth = np.where(outside, self.rate_error + self.wander, self.wander)
        bound: Floats = np.interp(since, knots, self.error_ns) + growth * distance
        return bound


_NO_INTS: Ints = np.zeros(0, dtype=np.int64)
SAME_CLOCK = ClockMap(_NO_INTS, _NO_INTS, np.zeros(0), 0.0, 0.0, 0.0)


def fit(at_ns: Ints, offset_ns: Ints, error_ns: Ints) -> ClockMap:
    """Fits a map to the most precise comparisons.

    Args:
        at_ns: times of at least one comparison on the clock to map, in any order.
        offset_ns: rank 0's clock minus the clock to map, at each comparison.
        error_ns: bound on the error of each offset.
    """
    chosen = _chosen(at_ns, error_ns)
    at, offset, error = at_ns[chosen], offset_ns[chosen], error_ns[chosen].astype(np.float64)
    if len(at) == 1:
        return ClockMap(at, offset, error, 0.0, MOST_DRIFT, 0.0)
    length = np.diff(at).astype(np.float64)
    rates = np.diff(offset) / length
    unsure = (error[1:] + error[:-1]) / length
    # The true drift between two comparisons lies in rates +- unsure. If these ranges do not
    # overlap, the drift changed.
    wander = max(0.0, float((rates - unsure).max() - (rates + unsure).min()))
    span = float(at[-1] - at[0])
    rate, rate_error = float(offset[-1] - offset[0]) / span, float(error[-1] + error[0]) / span
    if rate_error > MOST_DRIFT:
        rate, rate_error = 0.0, MOST_DRIFT
    return ClockMap(at, offset, error, rate, rate_error, wander)


def _chosen(at_ns: Ints, error_ns: Ints) -> Ints:
    """Returns the indices of the comparisons that a map is fitted to, sorted by time.

    Comparisons with the smallest error bounds are chosen first. A comparison is left out if it is
    close in time to a chosen comparison, or if its error bound is more than ``_DISTURBED`` times
    the bound that the chosen comparisons give for the same time.
    """
    kept: list[tuple[int, int]] = []
    errors = error_ns.tolist()
    for row in np.argsort(error_ns, kind="stable").tolist():
        time_ns = int(at_ns[row])
        if errors[row] <= _DISTURBED * _error_bound(kept, errors, time_ns):
            insort(kept, (time_ns, row))
    return np.array([row for _, row in kept], dtype=np.int64)


def _error_bound(kept: Sequence[tuple[int, int]], errors: Sequence[int], time_ns: int) -> float:
    """Returns the bound, in ns, that the kept comparisons give for the offset's error.

    Returns infinity if no comparison is kept, and -1 if a kept comparison is less than
    ``_APART_NS`` from ``time_ns``. ``kept`` has a pair for each kept comparison: its time in ns,
    and its position in ``errors``.
    """
    place = bisect(kept, (time_ns, 0))
    beside = kept[max(0, place - 1) : place + 1]
    distance = min((abs(time_ns - at) for at, _ in beside), default=math.inf)
    if distance == math.inf:
        return math.inf
    if distance < _APART_NS:
        return -1.0
    if 0 < place < len(kept):
        (begin, left), (end, right) = beside
        share = (time_ns - begin) / (end - begin)
        between = errors[left] * (1 - share) + errors[right] * share
        return between + UNSEEN_WANDER * distance
    (_, near), (_, far) = (kept[0], kept[-1]) if place == 0 else (kept[-1], kept[0])
    span = kept[-1][0] - kept[0][0]
    unsure = min(MOST_DRIFT, (errors[near] + errors[far]) / span) if span else MOST_DRIFT
    return errors[near] + (unsure + UNSEEN_WANDER) * distance


#: Identifies a clock by the boot ID and time namespace of its ranks; if both are unknown, by the
#: rank.
_Clock = tuple[str, str] | int


def rank_clocks(traces: Sequence[Trace]) -> list[ClockMap] | None:
    """Returns the map from each rank's clock to rank 0's; None if the map of a rank is unknown.

    Ranks with the same boot and time namespace share a clock, and so a map.
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
    """Returns the traces with all times on rank 0's clock.

    Durations change by the clocks' relative drift, which is a few parts in a million.
    Records of clock comparisons (``Kind.CLOCK``) are not converted.
    """
    return [
        trace
        if clock.is_same_clock
        else dataclasses.replace(
            trace,
            records=cast("Records", packed(trace.records).on_clock(clock.to_common)),
            device_activity=trace.device_activity and trace.device_activity.moved(clock.to_common),
        )
        for trace, clock in zip(traces, clocks, strict=True)
    ]


def clock_error_us(clocks: Sequence[ClockMap] | None, traces: Sequence[Trace]) -> float:
    """Returns the largest error bound, in µs, of issue times that are mapped to rank 0's clock.

    ``traces`` have times on each rank's own clock. Returns 0 if all ranks share one clock, and NaN
    if clocks cannot be compared.
    """
    if clocks is None:
        return math.nan
    of_clocks: dict[int, tuple[ClockMap, list[Records]]] = {}
    for clock, trace in zip(clocks, traces, strict=True):
        of_clocks.setdefault(id(clock), (clock, []))[1].append(trace.records)
    worst_ns = [0.0]
    for clock, of_ranks in of_clocks.values():
        if not clock.is_same_clock:
            issued_ns = columns_of(of_ranks, Kind.ISSUE, "timestamp_ns").astype(np.int64)
            worst_ns.append(clock.error(issued_ns).max(initial=0.0))
    return ns_to_us(float(max(worst_ns)))


def comparisons(traces: Sequence[Trace]) -> ClockMap | None:
    """Fits a map from the clock that the ranks of ``traces`` share to rank 0's clock.

    Returns None if ``traces`` hold no comparisons with rank 0's clock.
    """
    of_ranks = [trace.records for trace in traces]
    # A signed offset is recorded as its two's complement.
    time_ns, offset, error = (
        column.astype(np.uint64).view(np.int64)
        for column in fields_of(of_ranks, Kind.CLOCK, "timestamp_ns", "value", "bytes_in")
    )
    return fit(time_ns, offset, error) if len(time_ns) else None


def _clock(trace: Trace) -> _Clock:
    machine = trace.metadata["machine"]
    key = machine["boot_id"], machine["time_namespace"]
    return key if any(key) else trace.rank
