"""One clock as seen from another: offset and drift, from comparisons with known error bounds."""

from __future__ import annotations

import math
from bisect import bisect, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.trace.columns import Ints

Floats = npt.NDArray[np.float64]

#: A comparison is left out if better ones tell the offset at its time with a bound so many times
#: smaller: it was disturbed, and a line through it would be bent for nothing. For this choice
#: alone a drift is taken to change by so much unseen, as with a crystal's temperature.
_DISTURBED = 3.0
_UNSEEN_WANDER = 1e-6
#: Of comparisons closer than this the best is taken: their distance says nothing about drift.
_APART_NS = 100_000_000
#: Where comparisons do not tell the drift: the kernel corrects a clock by no more than this
#: (MAXFREQ of adjtimex(2), 500 ppm).
_MOST_DRIFT = 500e-6


@dataclass(frozen=True)
class ClockMap:
    """From a clock to rank 0's: straight lines between comparisons, the mean drift outside.

    Without any comparison both are the same clock.
    """

    #: Times of the comparisons by this clock, ascending.
    at_ns: Ints
    #: Rank 0's clock less this one.
    offset_ns: Ints
    #: Bound on each offset's error.
    error_ns: Floats
    #: Drift outside of the comparisons: ns of offset gained per ns.
    rate: float
    #: Bound on its error.
    rate_error: float
    #: Smallest spread of drift that the comparisons leave possible: 0 if one drift fits them all.
    wander: float

    @property
    def is_same_clock(self) -> bool:
        """Whether nothing needs to be mapped."""
        return len(self.at_ns) == 0

    def to_common(self, own_ns: Ints) -> Ints:
        """Times of this clock by rank 0's."""
        if self.is_same_clock:
            return own_ns
        since = (own_ns - self.at_ns[0]).astype(np.float64)
        knots = (self.at_ns - self.at_ns[0]).astype(np.float64)
        gained = np.interp(since, knots, (self.offset_ns - self.offset_ns[0]).astype(np.float64))
        gained += self.rate * (np.minimum(0, since) + np.maximum(0, since - knots[-1]))
        return own_ns + self.offset_ns[0] + np.rint(gained).astype(np.int64)

    def error(self, own_ns: Ints) -> Floats:
        """Bound on the error of :meth:`to_common` at times of this clock, in ns.

        Between two comparisons: their bounds, interpolated, plus wander times the distance to
        the nearer one. Outside: the bound of the nearest, plus (the drift's error bound plus
        wander) times the distance.
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
#: Of a clock to itself.
SAME_CLOCK = ClockMap(_NO_INTS, _NO_INTS, np.zeros(0), 0.0, 0.0, 0.0)


def fit(at_ns: Ints, offset_ns: Ints, error_ns: Ints) -> ClockMap:
    """The map through the comparisons that were not disturbed.

    Args:
        at_ns: times of at least one comparison by the clock to map, in any order.
        offset_ns: rank 0's clock less that one.
        error_ns: bound on each offset's error.
    """
    chosen = _chosen(at_ns, error_ns)
    at, offset, error = at_ns[chosen], offset_ns[chosen], error_ns[chosen].astype(np.float64)
    if len(at) == 1:
        return ClockMap(at, offset, error, 0.0, _MOST_DRIFT, 0.0)
    length = np.diff(at).astype(np.float64)
    rates = np.diff(offset) / length
    unsure = (error[1:] + error[:-1]) / length
    # Every line's true drift lies in rates +- unsure; where these do not meet, drift changed.
    wander = max(0.0, float((rates - unsure).max() - (rates + unsure).min()))
    span = float(at[-1] - at[0])
    rate, rate_error = float(offset[-1] - offset[0]) / span, float(error[-1] + error[0]) / span
    if rate_error > _MOST_DRIFT:
        rate, rate_error = 0.0, _MOST_DRIFT
    return ClockMap(at, offset, error, rate, rate_error, wander)


def _chosen(at_ns: Ints, error_ns: Ints) -> Ints:
    """Rows to go through, in order of time: the best, and from there what adds to the better."""
    kept: list[tuple[int, int]] = []
    errors = error_ns.tolist()
    for row in np.argsort(error_ns, kind="stable").tolist():
        time_ns = int(at_ns[row])
        if errors[row] <= _DISTURBED * _told(kept, errors, time_ns):
            insort(kept, (time_ns, row))
    return np.array([row for _, row in kept], dtype=np.int64)


def _told(kept: Sequence[tuple[int, int]], errors: Sequence[int], time_ns: int) -> float:
    """What comparisons, as times and rows, tell of the offset at another time: its bound in ns.

    Infinite without any. Negative right beside one, so that there nothing adds to it.
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
        return between + _UNSEEN_WANDER * distance
    (_, near), (_, far) = (kept[0], kept[-1]) if place == 0 else (kept[-1], kept[0])
    span = kept[-1][0] - kept[0][0]
    unsure = min(_MOST_DRIFT, (errors[near] + errors[far]) / span) if span else _MOST_DRIFT
    return errors[near] + (unsure + _UNSEEN_WANDER) * distance
