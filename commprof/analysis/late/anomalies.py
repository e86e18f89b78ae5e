"""Finds lasting changes of step time, of bandwidth, and of a rank's own work.

The same code handles running and finished jobs, one step at a time. The detector finds changes of
level in a series of values, such as step times. It uses Page's cumulative sum (E. S. Page,
"Continuous inspection schemes", Biometrika 41, 1954), with a limit for each value, as in J. M.
Lucas and R. B. Crosier, "Robust CUSUM" (Communications in Statistics 11, 1982).

The current level is learnt from ``REFERENCE`` values, the reference. z_i is a later value minus the
reference's median, in the reference's robust standard deviations (1.4826 x the median absolute
deviation). cut() limits z_i to +-CUT, so that one very long step counts little, and only a lasting
change adds up::

    up_i   = max(0, up_(i-1)   + cut(z_i) - SLACK),     a change up   if up_i   > LIMIT
    down_i = max(0, down_(i-1) - cut(z_i) - SLACK),     a change down if down_i > LIMIT

The change began after the last value at which the sum was 0. The medians before and after the
change must also differ by ``SMALLEST_CHANGE``.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.alike_ranks import sizes_of_groups
from commprof.analysis.collectives.traffic import sizes_bytes
from commprof.analysis.step.breakdown import Breakdown
from commprof.analysis.step.measured import MeasuredSteps, MeasuredWorld, slowest_ns
from commprof.analysis.step.rank_parts import RankParts
from commprof.stats.intervals import robust_deviation
from commprof.text import named_ranks, plain_digits
from commprof.trace import columns
from commprof.trace.columns import Collectives, Ints, Steps, tables_of
from commprof.trace.lookup import among, kept_once
from commprof.trace.ranks import firsts_of, joined, rows_containing
from commprof.trace.reader import Trace
from commprof.trace.schema import PHASES, POINT_TO_POINT
from commprof.units import NS_PER_MS, ns_to_ms

Floats = npt.NDArray[np.float64]

#: Number of values from which a level is learnt, at the begin and after each change.
REFERENCE = 40
#: Largest deviation of a value, in robust standard deviations; larger deviations are cut.
CUT = 3.0
#: A value adds to the sum only its excess over this many robust standard deviations.
SLACK = 1.0
#: If the sum is larger than this, the level has changed. Eight consecutive values beyond ``CUT``
#: suffice.
LIMIT = 15.0
#: The medians must differ by at least this fraction of the level.
SMALLEST_CHANGE = 0.1
#: Smallest spread, as a fraction of the level: timers and schedulers have a limited resolution.
_SMALLEST_SPREAD = 0.01
#: Sums that add the same values in another order differ by less than this.
_ROUNDED = 1e-6
#: If a sum stays above 0 for more values than this without a change, the level is learnt again.
_LONGEST = 4 * REFERENCE


@dataclass(frozen=True)
class SpeedChange:
    """A change of level in a series of values."""

    #: Index in the series of the first value at the new level.
    begin: int
    #: Index of the value at which the change became certain.
    found: int
    before: float
    #: Median from ``begin`` to ``found``.
    after: float

    @property
    def ratio(self) -> float:
        """Level after the change divided by the level before."""
        return self.after / self.before


class ChangeDetector:
    """Detects changes of level in one series of positive values. Memory is bounded."""

    def __init__(self) -> None:
        self._count = 0
        self._reference: list[float] = []
        self._median = 0.0
        self._spread = 0.0
        self._sums = [0.0, 0.0]
        self._since: list[list[float]] = [[], []]

    def add(self, value: float) -> SpeedChange | None:
        """Adds the next value. Returns a change if this value makes it certain, else None."""
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

    def _follow(self, direction: int, increment: float, value: float) -> SpeedChange | None:
        total = self._sums[direction] + increment
        since = self._since[direction]
        if total <= 0:
            self._sums[direction] = 0.0
            since.clear()
            return None
        self._sums[direction] = total
        since.append(value)
        if len(since) > _LONGEST:
            self._restart(since)
            return None
        if total <= LIMIT:
            return None
        after = statistics.median(since)
        if abs(after - self._median) >= SMALLEST_CHANGE * abs(self._median):
            begin = self._count - len(since)
            return SpeedChange(begin, self._count - 1, self._median, after)
        return None

    def _restart(self, known: list[float]) -> None:
        self._reference = known[-REFERENCE:]
        self._sums = [0.0, 0.0]
        self._since = [[], []]
        if len(self._reference) == REFERENCE:
            self._learn()


#: Smaller collectives are bound by latency and say nothing about bandwidth.
BULK_BYTES = 64 * 1024
_BITS_PER_BYTE = 8
#: Number of steps whose phases are kept, to find the phase that changed.
_KEPT_STEPS = 6 * REFERENCE
#: The former level is back if the median of this many consecutive values is nearer to it than to
#: the new level.
_BACK = 8
#: At most this many anomalies are reported per kind and rank, because an unstable job would fill
#: the report.
_MOST_EACH = 20

STEP, COMPUTE, BANDWIDTH = "step time", "own work", "bandwidth"


@dataclass(frozen=True)
class StepFigures:
    """Figures of one step, over all ranks."""

    step: int
    #: Time at which the lowest rank ended the step, by that rank's ``CLOCK_MONOTONIC``.
    end_ns: int
    wall_ms: float
    #: Time of each rank without waiting, by phase in the order of ``schema.PHASES``.
    work_ms: Mapping[int, Sequence[float]]
    #: Bandwidth of large collectives, see :func:`bandwidth_by_step`; NaN if there are none.
    gbit_per_s: float = math.nan


@dataclass(frozen=True)
class Anomaly:
    """A lasting change of level of one figure of a job."""

    #: ``STEP``, ``COMPUTE`` or ``BANDWIDTH``: the figure that changed.
    what: str
    #: -1 if the figure concerns all ranks.
    rank: int
    #: First step at the new level.
    step: int
    #: End of this first step, as in ``StepFigures.end_ns``.
    time_ns: int
    #: Step after which the change was certain.
    found_step: int
    #: For a change of a rank's own work, the phase that changed most; else empty.
    phase: str
    #: Level before the change, as a median in ms or Gbit/s.
    before: float
    #: Level after the change.
    after: float
    #: Last step before the former level came back; None if the former level has not come back.
    last_step: int | None = None
    #: Ranks whose own work changed in the same way; ``rank`` is the lowest of these ranks. Empty if
    #: only one rank changed.
    ranks: tuple[int, ...] = ()

    @property
    def unit(self) -> str:
        """Unit of ``before`` and ``after``."""
        return "Gbit/s" if self.what == BANDWIDTH else "ms"

    @property
    def sentence(self) -> str:
        """Sentence on the change: which rank and phase, from which step on, and by how much."""
        verb = "rose" if self.after > self.before else "fell"
        whose = f"rank {self.rank}'s {self.what}" if self.rank >= 0 else self.what
        if self.ranks:
            whose = f"{self.what} of {named_ranks(self.ranks)}"
        where = f", most of it in {self.phase}" if self.phase else ""
        when = f"at step {self.step}"
        if self.last_step is not None:
            when = f"from step {self.step} to {self.last_step}"
        levels = f"from {plain_digits(self.before)} to {plain_digits(self.after)} {self.unit}"
        growth = f"{self.after / self.before - 1:+.0%}"
        return f"{whose[0].upper()}{whose[1:]} {verb} {levels} ({growth}) {when}{where}"


class AnomalyFinder:
    """Finds anomalies in a job's steps, which are added in order."""

    def __init__(self, watched: Set[tuple[str, int]] | None = None) -> None:
        """``watched``: the series that are searched for changes, by kind and rank; None for all."""
        self._watched = watched
        self._detectors: dict[tuple[str, int], ChangeDetector] = {}
        self._steps: dict[tuple[str, int], deque[StepFigures]] = {}
        self._reported: dict[tuple[str, int], int] = {}

    def add(self, figures: StepFigures) -> list[Anomaly]:
        """Adds the next step. Returns the anomalies that this step makes certain."""
        found: list[Anomaly] = []
        for key, value in _values(figures).items():
            if self._watched is None or key in self._watched:
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
        self._reported[key] = self._reported.get(key, 0) + 1
        if self._reported[key] <= _MOST_EACH:
            yield _anomaly(key, change, list(steps))


def find_anomalies(seen: MeasuredSteps, gbit_per_s: Mapping[int, float]) -> tuple[Anomaly, ...]:
    """Finds anomalies in a finished run. A change and its later reversal count as one anomaly.

    Args:
        seen: all steps of the run.
        gbit_per_s: result of :func:`bandwidth_by_step`.
    """
    if len(seen.measured.step) <= REFERENCE:
        return ()
    series = _series(seen, gbit_per_s)
    watched = may_change(series)
    if not watched:
        return ()
    finder = AnomalyFinder(watched)
    by_kind: dict[tuple[str, int], list[Anomaly]] = {}
    figures = step_figures(seen.ranks, seen.measured, seen.steps, gbit_per_s)
    for found in (anomaly for of_step in figures for anomaly in finder.add(of_step)):
        changes = by_kind.setdefault((found.what, found.rank), [])
        former = changes[-1] if changes else None
        if former is None or former.last_step is None or not _is_return(found, former):
            changes.append(_with_end(found, *series[found.what, found.rank]))
    changes = [change for of_series in by_kind.values() for change in of_series]
    return tuple(merged_changes(sorted(changes, key=lambda change: change.found_step)))


def merged_changes(changes: Sequence[Anomaly]) -> list[Anomaly]:
    """Merges changes of several ranks' own work, such as all ranks of a slow host.

    Args:
        changes: in the order of ``found_step``.

    Changes are merged if they have the same direction and phase, and if they began and ended at
    nearly the same steps. Times and steps are those of the first change, levels are medians.
    """
    together: list[list[Anomaly]] = []
    for change in changes:
        same = next((group for group in together if _is_same_change(group[0], change)), None)
        if same is None:
            together.append([change])
        else:
            same.append(change)
    return [group[0] if len(group) == 1 else _of_ranks(group) for group in together]


def _is_same_change(first: Anomaly, other: Anomaly) -> bool:
    if first.what != COMPUTE or other.what != COMPUTE:
        return False
    ends = first.last_step, other.last_step
    if (ends[0] is None) != (ends[1] is None) or first.phase != other.phase:
        return False
    if (first.after > first.before) != (other.after > other.before):
        return False
    apart = max(abs(first.step - other.step), abs((ends[0] or 0) - (ends[1] or 0)))
    return apart <= _BACK


def _of_ranks(changes: Sequence[Anomaly]) -> Anomaly:
    ranks = tuple(sorted(change.rank for change in changes))
    before, after = (
        statistics.median(getattr(change, name) for change in changes)
        for name in ("before", "after")
    )
    return replace(changes[0], rank=ranks[0], ranks=ranks, before=before, after=after)


def _series(
    seen: MeasuredSteps, gbit_per_s: Mapping[int, float]
) -> dict[tuple[str, int], tuple[Ints, Floats]]:
    step = seen.measured.step
    work_ms: Floats = np.zeros(())
    for phase in PHASES:
        work_ms = work_ms + seen.measured.table(phase) / NS_PER_MS
    values = {
        (STEP, -1): slowest_ns(seen.measured) / NS_PER_MS,
        (BANDWIDTH, -1): np.array([gbit_per_s.get(number, math.nan) for number in step.tolist()]),
        **{(COMPUTE, rank): of_rank for rank, of_rank in zip(seen.ranks, work_ms, strict=True)},
    }
    kept = {key: np.isfinite(series) & (series > 0) for key, series in values.items()}
    return {key: (step[kept[key]], values[key][kept[key]]) for key in values if kept[key].any()}


def may_change(
    series: Mapping[tuple[str, int], tuple[Ints, Floats]],
) -> set[tuple[str, int]]:
    """Finds the series in which a :class:`ChangeDetector` may report a change or learn a new level.

    Only these series need a detector. All series of equal length are examined together, which is
    much faster.
    """
    found: set[tuple[str, int]] = set()
    by_length: dict[int, list[tuple[str, int]]] = {}
    for key, (_, values) in series.items():
        by_length.setdefault(len(values), []).append(key)
    for length, keys in by_length.items():
        if length <= REFERENCE:
            continue
        values = np.stack([series[key][1] for key in keys])
        level = np.median(values[:, :REFERENCE], axis=1)
        spread = np.array([robust_deviation(each[:REFERENCE]) for each in values])
        spread = np.maximum(spread, _SMALLEST_SPREAD * np.abs(level))
        spread[spread == 0] = 1.0
        cut = (values[:, REFERENCE:].T - level) / spread
        cut = np.clip(cut, -CUT, CUT)
        changed = np.zeros(len(keys), dtype=np.bool_)
        for sign in (1.0, -1.0):
            total, since = np.zeros(len(keys)), np.zeros(len(keys))
            for row in sign * cut - SLACK:
                total = np.maximum(0.0, total + row)
                since = np.where(total > 0, since + 1, 0)
                changed |= (total > LIMIT - _ROUNDED) | (since >= _LONGEST)
        found |= {keys[place] for place in np.flatnonzero(changed).tolist()}
    return found


def _with_end(found: Anomaly, steps: Ints, values: Floats) -> Anomaly:
    after = steps > found.found_step
    steps, values = steps[after], values[after]
    for place in np.flatnonzero(_nearer_before(values, found)).tolist():
        level = values[place : place + _BACK]
        if len(level) == _BACK and _nearer_before(np.median(level, keepdims=True), found).all():
            last = int(steps[place - 1]) if place else found.found_step
            return replace(found, last_step=last)
    return found


def _nearer_before(values: Floats, found: Anomaly) -> npt.NDArray[np.bool_]:
    return np.asarray(np.abs(values - found.before) < np.abs(values - found.after))


def _is_return(found: Anomaly, former: Anomaly) -> bool:
    return abs(found.after - former.before) <= SMALLEST_CHANGE * former.before


def _values(figures: StepFigures) -> dict[tuple[str, int], float]:
    """Returns the figures of a step that are watched for changes, by kind and rank."""
    series = {(STEP, -1): figures.wall_ms, (BANDWIDTH, -1): figures.gbit_per_s}
    series |= {(COMPUTE, rank): float(sum(work)) for rank, work in figures.work_ms.items()}
    # A level of 0 has no ratio, and a rank that does nothing cannot be slow.
    return {key: value for key, value in series.items() if math.isfinite(value) and value > 0}


def step_figures(
    ranks: Sequence[int], parts: Sequence[Breakdown], steps: Steps, rates: Mapping[int, float]
) -> Iterator[StepFigures]:
    """Yields the figures of each step.

    Args:
        ranks: global ranks.
        parts: breakdown of the same steps for each rank.
        steps: steps of the first rank; they include the steps of ``parts``.
        rates: result of :func:`bandwidth_by_step`.
    """
    of_ranks = RankParts.of(parts)
    work, wall = of_ranks.column(lambda part: part.work_ns), slowest_ns(of_ranks)
    ends = dict(zip(steps.index.tolist(), steps.end_ns.tolist(), strict=True))
    for row, step in enumerate(of_ranks.step.tolist()):
        yield StepFigures(
            step=step,
            end_ns=ends.get(step, 0),
            wall_ms=ns_to_ms(float(wall[row])),
            work_ms={
                rank: [ns_to_ms(float(value)) for value in of_rank[:, row]]
                for rank, of_rank in zip(ranks, work, strict=True)
            },
            gbit_per_s=rates.get(step, math.nan),
        )


def _bulk_bytes(op: Ints, bytes_in: Ints, bytes_out: Ints, group_size: Ints) -> Ints:
    """Returns the size of each collective that shows bandwidth, and 0 for all other calls.

    Messages and collectives below ``BULK_BYTES`` show no bandwidth. Neither do collectives in a
    group of one rank, or in a group whose size is unknown (0).
    """
    size = sizes_bytes(op, bytes_in, bytes_out, group_size)
    is_bulk = (size >= BULK_BYTES) & (group_size > 1) & ~among(op, *POINT_TO_POINT)
    return np.where(is_bulk, size, 0)


def bandwidth_by_step(seen: MeasuredWorld) -> dict[int, float]:
    """Returns the bandwidth in Gbit/s by step; empty if the ranks' times cannot be compared.

    This is the size of large collectives divided by their times. Each time begins when the last
    rank issues the collective, and ends when the collective is complete on all ranks. A collective
    counts only if all its ranks recorded its exact completion without an error. It counts in the
    step in which its lowest rank issued it.
    """
    if not seen.clocks_shared:
        return {}
    matching = seen.matching
    step, size = _bulk_of(seen.traces, seen.tables)
    # The first row of each collective is that of its lowest rank.
    lowest = np.zeros(len(matching.complete), dtype=np.int64)
    lowest[matching.member[::-1]] = np.arange(len(size) - 1, -1, -1)
    known = matching.every(size > 0)[lowest] & (step[lowest] >= 0)
    step, size = step[lowest], size[lowest]
    time_ns = _latest_ns(seen, "end_ns")[lowest] - _latest_ns(seen, "issue_ns")[lowest]
    counted = known & (time_ns > 0)
    steps, place = np.unique(step[counted], return_inverse=True)
    bits = np.bincount(place, size[counted] * _BITS_PER_BYTE)
    rates = bits / np.bincount(place, time_ns[counted])
    return dict(zip(steps.tolist(), rates.tolist(), strict=True))


def _latest_ns(seen: MeasuredWorld, name: str) -> Ints:
    return seen.matching.latest(joined(seen.tables, name))[0]


def _bulk_of(traces: Sequence[Trace], tables: Sequence[Collectives]) -> tuple[Ints, Ints]:
    """Returns the step and the size of each collective of all ranks, to compute bandwidth.

    The step is -1 for a collective outside of all steps. The size is 0 for a collective that does
    not count.
    """
    steps = tables_of(traces, columns.steps)
    row = rows_containing(
        joined(steps, "begin_ns"),
        joined(steps, "end_ns"),
        firsts_of(steps),
        joined(tables, "issue_ns"),
        firsts_of(tables),
    )
    op, bytes_in, bytes_out = (joined(tables, name) for name in ("op", "bytes_in", "bytes_out"))
    size = kept_once(_bulk_bytes(op, bytes_in, bytes_out, sizes_of_groups(traces, tables)))
    counted = joined(tables, "end_is_exact") & ~joined(tables, "failed")
    size = size if counted.all() else np.where(counted, size, 0)
    return np.append(joined(steps, "index"), -1)[row], size


def _anomaly(key: tuple[str, int], change: SpeedChange, steps: list[StepFigures]) -> Anomaly:
    what, rank = key
    new = change.found - change.begin + 1
    first = steps[-new]
    phase = _changed_phase(rank, steps[:-new], steps[-new:]) if what == COMPUTE else ""
    found, before, after = steps[-1].step, change.before, change.after
    return Anomaly(what, rank, first.step, first.end_ns, found, phase, before, after)


def _changed_phase(rank: int, before: list[StepFigures], after: list[StepFigures]) -> str:
    levels = [
        np.median([figures.work_ms[rank] for figures in part], axis=0) for part in (before, after)
    ]
    return PHASES[int(np.argmax(np.abs(levels[1] - levels[0])))]
