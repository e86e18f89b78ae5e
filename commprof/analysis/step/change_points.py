"""Changes of level in a series that comes one value at a time, such as the time of each step.

Page's cumulative sum (E. S. Page, "Continuous inspection schemes", Biometrika 41, 1954), on values
made robust before they are added, as in J. M. Lucas and R. B. Crosier, "Robust CUSUM"
(Communications in Statistics 11, 1982): each value, less the reference's median, is counted in the
reference's robust standard deviations (1.4826 x the median absolute deviation) and cut at +-CUT.
So one step of a minute counts no more than one that is a little late, and only a change that lasts
adds up::

    up_i   = max(0, up_(i-1)   + cut(z_i) - SLACK),     a change up   if up_i   > LIMIT
    down_i = max(0, down_(i-1) - cut(z_i) - SLACK),     a change down if down_i > LIMIT

It began after the last value at which the sum was 0. The medians before and after it must also
differ by a share of the level that matters: what is sure to have changed need not be of interest.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from commprof.stats.robust import robust_deviation

#: Values that a level is learnt from, at the begin and after each change.
REFERENCE = 40
#: Robust standard deviations beyond which a value counts no more.
CUT = 3.0
#: Of them that each value must exceed to add to the sum.
SLACK = 1.0
#: Sum at which the level has changed: 8 values in a row beyond the cut, or more that are nearer.
LIMIT = 15.0
#: Share of the level by which the medians must differ.
SMALLEST_CHANGE = 0.1
#: The spread counts as at least this share of the level: timers and schedulers have a grain.
_SMALLEST_SPREAD = 0.01
#: Values for which a sum may stay above 0 without a change.
_LONGEST = 4 * REFERENCE


@dataclass(frozen=True)
class Change:
    """The level of a series is another from here on."""

    #: Place in the series of the first value at the new level.
    begin: int
    #: Place of the value with which it was sure.
    found: int
    #: Median of the reference.
    before: float
    #: Median from ``begin`` to ``found``.
    after: float

    @property
    def ratio(self) -> float:
        """After over before."""
        return self.after / self.before


class ChangeDetector:
    """Tells of each change of level in one series of positive values. Memory is bounded."""

    def __init__(self) -> None:
        self._count = 0
        self._reference: list[float] = []
        self._median = 0.0
        self._spread = 0.0
        # Per direction: the sum, and the values since it was 0.
        self._sums = [0.0, 0.0]
        self._since: list[list[float]] = [[], []]

    def add(self, value: float) -> Change | None:
        """Takes the next value; the change that it made sure, if any."""
        self._count += 1
        if len(self._reference) < REFERENCE:
            self._reference.append(value)
            if len(self._reference) == REFERENCE:
                self._learn()
            return None
        deviations = (value - self._median) / self._spread
        cut = min(max(deviations, -CUT), CUT)
        for direction, sign in enumerate((1, -1)):
            change = self._follow(direction, sign * cut - SLACK, value)
            if change is not None:
                self._restart(self._since[direction])
                return change
        return None

    def _learn(self) -> None:
        self._median = statistics.median(self._reference)
        grain = _SMALLEST_SPREAD * abs(self._median)
        self._spread = max(robust_deviation(self._reference), grain) or 1.0
        self._sums = [0.0, 0.0]
        self._since = [[], []]

    def _follow(self, direction: int, increment: float, value: float) -> Change | None:
        """One direction's sum; a change if it is beyond the limit and large enough."""
        total = self._sums[direction] + increment
        since = self._since[direction]
        if total <= 0:
            self._sums[direction] = 0.0
            since.clear()
            return None
        self._sums[direction] = total
        since.append(value)
        if len(since) > _LONGEST:
            # Sure and small, or just beyond the slack: the level creeps, and is learnt anew.
            self._restart(since)
            return None
        if total <= LIMIT:
            return None
        after = statistics.median(since)
        if abs(after - self._median) >= SMALLEST_CHANGE * abs(self._median):
            begin = self._count - len(since)
            return Change(begin, self._count - 1, self._median, after)
        return None

    def _restart(self, known: list[float]) -> None:
        """Learns the level anew, from what is known of it on."""
        self._reference = known[-REFERENCE:]
        self._sums = [0.0, 0.0]
        self._since = [[], []]
        if len(self._reference) == REFERENCE:
            self._learn()
