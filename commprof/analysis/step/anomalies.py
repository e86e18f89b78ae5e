"""Changes of level in a run: of its steps, of bandwidth, of a rank's own work (it fails slow).

The same code follows a running job and reads a finished one, a step at a time.

Changes of level in a series that comes one value at a time, such as the time of each step.

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

import math
import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.measured import MeasuredWorld
from commprof.analysis.collectives.traffic import sizes_bytes
from commprof.stats.intervals import robust_deviation
from commprof.trace.columns import Collectives
from commprof.trace.reader import Trace
from commprof.trace.schema import PHASES
from commprof.units import ns_to_ms

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
    """A change of level in a series of values."""

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
        """Level after the change over the level before."""
        return self.after / self.before


class ChangeDetector:
    """Detects changes of level in one series of positive values. Memory is bounded."""

    def __init__(self) -> None:
        self._count = 0
        self._reference: list[float] = []
        self._median = 0.0
        self._spread = 0.0
        # Per direction: the sum, and the values since it was 0.
        self._sums = [0.0, 0.0]
        self._since: list[list[float]] = [[], []]

    def add(self, value: float) -> Change | None:
        """Takes the next value; returns the change that it makes certain, if any."""
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


#: Smaller collectives are bound by latency and say nothing about bandwidth.
BULK_BYTES = 64 * 1024
_BITS_PER_BYTE = 8
#: Steps whose phases are kept, to say which of them changed.
_KEPT_STEPS = 6 * REFERENCE
#: So many values in a row, by their median, say that a level is the former one again.
_BACK = 8
#: Of each kind and rank; a job that flaps would fill the report.
_MOST_EACH = 20

STEP, COMPUTE, BANDWIDTH = "step time", "own work", "bandwidth"


@dataclass(frozen=True)
class StepFigures:
    """Figures of one step of all ranks."""

    step: int
    #: When the first of them ended it, by its ``CLOCK_MONOTONIC``.
    end_ns: int
    #: Of the slowest rank.
    wall_ms: float
    #: By rank: its time per phase without waiting, in the order of ``schema.PHASES``.
    work_ms: Mapping[int, Sequence[float]]
    #: Size of the collectives of ``BULK_BYTES`` or more over their time, from the last rank's issue
    #: to completion; NaN without any.
    gbit_per_s: float = math.nan


@dataclass(frozen=True)
class Anomaly:
    """A lasting change of level of one figure of a job."""

    #: ``STEP``, ``COMPUTE`` or ``BANDWIDTH``.
    what: str
    #: -1 where it concerns all ranks.
    rank: int
    #: First step at the new level.
    step: int
    #: When that step ended; see ``StepFigures.end_ns``.
    time_ns: int
    #: Step after which it was sure.
    found_step: int
    #: Of own work: the phase that changed most; empty of others.
    phase: str
    #: Medians, in ms or Gbit/s.
    before: float
    after: float
    #: Last step before the former level was back; None if it never was, or cannot be known yet.
    last_step: int | None = None

    @property
    def unit(self) -> str:
        """Unit of ``before`` and ``after``."""
        return "Gbit/s" if self.what == BANDWIDTH else "ms"

    @property
    def sentence(self) -> str:
        """Says which rank and phase changed, at which step and by how much."""
        verb = "rose" if self.after > self.before else "fell"
        whose = f"rank {self.rank}'s {self.what}" if self.rank >= 0 else self.what
        where = f", most of it in {self.phase}" if self.phase else ""
        when = f"at step {self.step}"
        if self.last_step is not None:
            when = f"from step {self.step} to {self.last_step}"
        return (
            f"{whose[0].upper()}{whose[1:]} {verb} from {self.before:.3g} to {self.after:.3g} "
            f"{self.unit} ({self.after / self.before - 1:+.0%}) {when}{where}"
        )


class AnomalyFinder:
    """Finds anomalies in a job's steps, taken in order."""

    def __init__(self) -> None:
        self._detectors: dict[tuple[str, int], ChangeDetector] = {}
        #: Per series the steps behind its newest values.
        self._steps: dict[tuple[str, int], deque[StepFigures]] = {}
        self._told: dict[tuple[str, int], int] = {}

    def add(self, figures: StepFigures) -> list[Anomaly]:
        """Takes the next step; returns the changes that it makes certain."""
        found: list[Anomaly] = []
        for key, value in _values(figures).items():
            found += self._follow(key, value, figures)
        return found

    def _follow(
        self, key: tuple[str, int], value: float, figures: StepFigures
    ) -> Iterator[Anomaly]:
        detector = self._detectors.setdefault(key, ChangeDetector())
        steps = self._steps.setdefault(key, deque(maxlen=_KEPT_STEPS))
        steps.append(figures)
        change = detector.add(value)
        if change is None:
            return
        self._told[key] = self._told.get(key, 0) + 1
        if self._told[key] <= _MOST_EACH:
            yield _anomaly(key, change, list(steps))


def find_anomalies(seen: MeasuredWorld) -> tuple[Anomaly, ...]:
    """Anomalies in the measured steps of a finished run; a change and its end are one."""
    finder, figures = AnomalyFinder(), list(_figures(seen))
    told: dict[tuple[str, int], list[Anomaly]] = {}
    for found in (one for each in figures for one in finder.add(each)):
        changes = told.setdefault((found.what, found.rank), [])
        former = changes[-1] if changes else None
        if former is None or former.last_step is None or not _is_return(found, former):
            changes.append(_with_end(found, figures))
    return tuple(
        sorted((one for each in told.values() for one in each), key=lambda x: x.found_step)
    )


def _with_end(found: Anomaly, figures: Sequence[StepFigures]) -> Anomaly:
    """Adds the last step at the new level, if the former level came back."""
    key = found.what, found.rank
    after = [each for each in figures if each.step > found.found_step and key in _values(each)]
    values = np.array([_values(each)[key] for each in after])
    for place in np.flatnonzero(_nearer_before(values, found)).tolist():
        level = values[place : place + _BACK]
        if len(level) == _BACK and _nearer_before(np.median(level, keepdims=True), found).all():
            last = after[place - 1].step if place else found.found_step
            return replace(found, last_step=last)
    return found


def _nearer_before(values: npt.NDArray[np.float64], found: Anomaly) -> npt.NDArray[np.bool_]:
    return np.asarray(np.abs(values - found.before) < np.abs(values - found.after))


def _is_return(found: Anomaly, former: Anomaly) -> bool:
    """Whether a change is the end of the one before it: back to where that began."""
    return abs(found.after - former.before) <= SMALLEST_CHANGE * former.before


def _values(figures: StepFigures) -> dict[tuple[str, int], float]:
    """What is followed of a step, by kind and rank."""
    series = {(STEP, -1): figures.wall_ms, (BANDWIDTH, -1): figures.gbit_per_s}
    series |= {(COMPUTE, rank): float(sum(work)) for rank, work in figures.work_ms.items()}
    # A level of 0 has no ratio, and a rank that does nothing cannot be slow.
    return {key: value for key, value in series.items() if math.isfinite(value) and value > 0}


def _figures(seen: MeasuredWorld) -> Iterator[StepFigures]:
    parts = seen.measured
    rates = _gbit_per_s(seen)
    work = np.stack([part.work_ns for part in parts])
    wall = np.max([part.wall_ns for part in parts], axis=0)
    ends = dict(zip(seen.steps.index.tolist(), seen.steps.end_ns.tolist(), strict=True))
    for place, step in enumerate(parts[0].step.tolist()):
        yield StepFigures(
            step=step,
            end_ns=ends.get(step, 0),
            wall_ms=ns_to_ms(float(wall[place])),
            work_ms={
                rank: [ns_to_ms(float(value)) for value in work[at, :, place]]
                for at, rank in enumerate(seen.ranks)
            },
            gbit_per_s=rates.get(step, math.nan),
        )


def _gbit_per_s(seen: MeasuredWorld) -> dict[int, float]:
    """Per step, of the first rank's bulk collectives."""
    arrivals, table = seen.arrivals[0], seen.tables[0]
    if arrivals is None:
        return {}
    size = sizes_bytes(
        table.op, table.bytes_in, table.bytes_out, _group_sizes(seen.traces[0], table)
    )
    time_ns = table.end_ns - arrivals.last_arrival_ns
    bulk = (size >= BULK_BYTES) & (arrivals.last_arrival_ns > 0) & (time_ns > 0)
    bulk &= table.end_is_exact & ~table.failed
    place = np.searchsorted(seen.steps.begin_ns, table.issue_ns[bulk], side="right") - 1
    inside = (place >= 0) & (place < len(seen.steps))
    count = len(seen.steps)
    bits = np.bincount(place[inside], size[bulk][inside] * _BITS_PER_BYTE, count)
    taken_ns = np.bincount(place[inside], time_ns[bulk][inside], count)
    rates = np.divide(bits, taken_ns, out=np.full(count, math.nan), where=taken_ns > 0)
    return dict(zip(seen.steps.index.tolist(), rates.tolist(), strict=True))


def _group_sizes(trace: Trace, table: Collectives) -> np.ndarray:
    sizes = np.ones(len(table), dtype=np.int64)
    for group in trace.groups.values():
        sizes[table.group == group.id] = group.size
    return sizes


def _anomaly(key: tuple[str, int], change: Change, steps: list[StepFigures]) -> Anomaly:
    what, rank = key
    new = change.found - change.begin + 1
    first = steps[-new]
    phase = _changed_phase(rank, steps[:-new], steps[-new:]) if what == COMPUTE else ""
    found, before, after = steps[-1].step, change.before, change.after
    return Anomaly(what, rank, first.step, first.end_ns, found, phase, before, after)


def _changed_phase(rank: int, before: list[StepFigures], after: list[StepFigures]) -> str:
    """The phase whose median changed most."""
    levels = [
        np.median([figures.work_ms[rank] for figures in part], axis=0) for part in (before, after)
    ]
    return PHASES[int(np.argmax(np.abs(levels[1] - levels[0])))]
