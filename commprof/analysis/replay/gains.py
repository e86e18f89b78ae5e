"""Step time that would be saved by a faster rank, by a faster phase or by faster transfers.

Each gain is a replay of the recorded steps (:mod:`commprof.analysis.replay.engine`) with one
change. "As fast as the others" means that a rank's own time in each phase gets the distribution of
the others: its longest time becomes their longest, its median their median, and so on. Own time is
time without waiting for communication. Issues of collectives divide a phase into pieces. If other
ranks have the same pieces, the lengths of the rank's pieces change in the same way.

A rank may be late in only some of the steps. To find the late steps, the steps are divided into two
groups, by how much longer the other ranks waited than the rank did. If the steps do not form two
groups, the rank is taken to be late in all of them or in none.

A delay changes more than the rank's own time: it also slows down transfers and other ranks, and it
delays the begin of the next step. So a late step, and the step after it, gets the replayed time of
a step that is not late. The extra own work of the other ranks in the late steps is added to this
time. If this extra work is small, it may be an effect of the waiting. Then only the part that
correlates with the rank's own work counts.

Run delay is the time for which the training thread waits for a core, which gloo's threads may use.
The run delays of different ranks cannot be compared: while gloo exchanges buckets, only the rank
that arrives last needs a core. So each rank's run delay in the late steps is replaced by the same
rank's run delay in the other steps.

The efficiencies in :class:`Gains` are those of POP (Performance Optimisation and Productivity, "POP
Standard Metrics for Parallel Performance Analysis"): parallel = load balance x serialisation x
transfer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.analysis.evidence import Evidence, Figure, evidence_of
from commprof.analysis.replay.engine import ReplayedCalls, calls, replay
from commprof.analysis.replay.program import LEAST_STEPS, Programs, programs, replayed_steps
from commprof.analysis.step.measured import MeasuredWorld, slowest_ns
from commprof.analysis.step.stalls import stalled
from commprof.memory import return_free_memory
from commprof.stats.groups import two_groups
from commprof.stats.intervals import Interval, interval_of, percentile_interval, resampled_means
from commprof.stats.rank_tests import lag_one, worth
from commprof.text import rank_list
from commprof.trace.columns import Ints
from commprof.trace.schema import PHASES
from commprof.units import ns_to_ms

Floats = npt.NDArray[np.float64]

#: At most this many ranks are replayed as fast as the others: those with the most own time.
_MOST_RANKS = 3
#: At most this many groups are replayed without transfer times: those with the most collectives.
_MOST_GROUPS = 3
#: A faster rank or phase is replayed only if its own time becomes shorter by at least this fraction
#: of the largest own time of a rank.
_LEAST_SHARE = 0.005
#: The first replayed step does not count if the ranks begin this step at times that differ by more
#: than this fraction of a step. Of a sample, the first step of each stretch never counts.
_APART = 0.01
#: Own work after a long wait is assumed to take longer by up to this fraction. Measurements showed
#: up to a tenth.
_COLD = 0.15


@dataclass(frozen=True)
class Gain:
    """One change, and the mean step time when the steps are replayed with this change."""

    #: "rank": one rank is as fast as the others. "phase": one phase of one rank is as fast.
    #: "balance": all ranks have the mean own time. "group": transfers of one process group take no
    #: time. "communication": no transfer takes time.
    change: str
    #: Global rank; -1 if the change concerns no single rank.
    rank: int
    #: As in ``schema.PHASES``; "" if the change concerns no single phase.
    phase: str
    #: Name of the process group; "" if the change concerns no single group.
    group: str
    step_ms: float
    #: Saved fraction of the step, with a 95 % bootstrap interval over the steps.
    saved: Interval


@dataclass(frozen=True)
class Gains:
    """Gains of all replayed changes at one world size, and POP's efficiencies."""

    #: Mean step over the ranks and over the steps that count.
    step_ms: float
    #: Number of the steps that count. Steps that stalled do not count.
    steps: int
    gains: tuple[Gain, ...]
    #: Mean own time of the ranks, divided by the largest.
    load_balance: float
    #: Largest own time of a rank, divided by the step replayed without transfer times.
    serialisation: float
    #: The step replayed without transfer times, divided by the step.
    transfer: float
    #: Number of measured steps; 0 if not known. Of a long run, only a sample of the steps is
    #: replayed.
    measured_steps: int = 0


def gains(seen: MeasuredWorld, evidence: Evidence | None = None) -> Gains | None:
    """Replays the steps with each change; returns the gains, or None if no replay is possible.

    No replay is possible if there is only one rank, if there are too few steps, if the ranks
    deadlock in the replay, or if the recordings do not support gains.

    ``evidence``: the evidence of the world size; None to compute it.
    """
    found = recorded_replays(seen, evidence)
    if found is None:
        return None
    recorded = found.step_ns()
    if recorded is None or not recorded[found.counted].all():
        return None
    base = recorded[found.counted]
    ideal = found.without_transfers()
    own = found.own_ns[:, found.counted].sum(axis=(1, 2))
    rows = []
    for gain, changed in found.changes(seen, own):
        if changed is not None:
            step_ms = ns_to_ms(float(changed[found.counted].mean()))
            rows.append(_gain(gain, step_ms, found.saved(recorded, changed)))
    ideal_ns = float(ideal[found.counted].sum()) if ideal is not None else np.nan
    return Gains(
        step_ms=ns_to_ms(float(base.mean())),
        steps=len(base),
        gains=tuple(rows),
        load_balance=float(own.mean() / own.max()),
        serialisation=float(own.max() / ideal_ns),
        transfer=ideal_ns / float(base.sum()),
        measured_steps=len(seen.measured.step),
    )


def recorded_replays(seen: MeasuredWorld, evidence: Evidence | None = None) -> Replays | None:
    """Prepares the replay of the measured steps; None if no replay is possible."""
    if len(seen.ranks) < 2 or len(seen.measured.step) < LEAST_STEPS:
        return None
    if not (evidence or evidence_of(seen)).supports(Figure.GAINS):
        return None
    chosen = replayed_steps(seen)
    step = np.concatenate(chosen)
    used = np.isin(seen.measured.step, step)
    counted = ~stalled(slowest_ns(seen.measured))[used]
    wall = seen.measured.table("wall").compress(used, axis=1)
    made = [programs(seen, each) for each in chosen]
    # A rank that begins a stretch late also begins the stretch late in every replay.
    first = np.cumsum([0, *map(len, chosen)])[:-1]
    apart = np.array([np.ptp(ranks.begin_ns) for ranks in made])
    late = apart > _APART * float(wall.mean())
    several = len(step) < len(seen.measured.step)
    begun = np.zeros(len(counted), dtype=bool)
    if several or counted.sum() > LEAST_STEPS:
        begun[first if several else first[late]] = True
        begun &= counted
        counted &= ~begun
    if counted.sum() < LEAST_STEPS:
        return None
    kept = seen.measured.column(lambda part: part.host.own_run_delay_ns).compress(used, axis=1)
    stretches = list(zip(made, calls(seen, made), strict=True))
    return_free_memory()
    return Replays(stretches, wall, kept, counted, begun, several)


@dataclass(frozen=True)
class _Change:
    change: str
    rank: int = -1
    phase: str = ""
    group: str = ""


class Replays:
    """Replays of one world size."""

    def __init__(
        self,
        stretches: Sequence[tuple[Programs, ReplayedCalls]],
        wall_ns: Floats,
        kept_ns: Floats,
        counted: npt.NDArray[np.bool_],
        begun: npt.NDArray[np.bool_],
        is_sample: bool,
    ) -> None:
        """Prepares the replays.

        Args:
            stretches: programs and recorded calls of all ranks, for each stretch of steps.
            wall_ns: ``[rank, step]``: recorded time of the step.
            kept_ns: ``[rank, step, phase]``: run delay that helper threads may have caused. It is
                never replaced by another rank's run delay.
            counted: mask of the steps used for figures. Steps that stalled are not used.
            begun: mask of the steps that begin a stretch. These steps are replayed, but not used
                for figures.
            is_sample: True if only some of the measured steps are replayed.
        """
        self.stretches, self.counted, self.begun = stretches, counted, begun
        self.is_sample = is_sample
        # The ranks, and the group of each call, are the same in every stretch.
        self.ranks = stretches[0][0].ranks
        self.group = stretches[0][1].group
        #: Own time ``[rank, step, phase]``.
        self.own_ns = np.concatenate([ranks.own_by_phase_ns() for ranks, _ in stretches], axis=1)
        self.kept_ns = np.minimum(kept_ns, self.own_ns)
        #: Time ``[rank, step]`` that each rank waits for communication.
        self.waited_ns = wall_ns - self.own_ns.sum(axis=2)
        self._alike: dict[int, Floats | None] = {}
        self._as_alike: dict[tuple[int, bytes], Floats] = {}
        self._ideal: list[Floats | None] = []

    def without_transfers(self) -> Floats | None:
        """Returns the step times of a replay in which no transfer takes time."""
        if not self._ideal:
            self._ideal.append(self.step_ns(free=np.ones(len(self.group), dtype=bool)))
        return self._ideal[0]

    def saved(self, base_ns: Floats, changed_ns: Floats) -> Interval:
        """Returns the fraction of the mean step that a change saves, over the counted steps.

        Args:
            base_ns: time of each step as :meth:`step_ns` returns it without a change.
            changed_ns: time of each step with the change.
        """
        return saved_by(base_ns[self.counted], changed_ns[self.counted], self.is_sample)

    def step_ns(
        self,
        own_ns: Floats | None = None,
        free: npt.NDArray[np.bool_] | None = None,
        pieces_ns: Mapping[int, Floats] | None = None,
    ) -> Floats | None:
        """Replays the steps; returns the time of each step, or None if the ranks deadlock.

        Args:
            own_ns: own time ``[rank, step, phase]``; None for the recorded own times.
            free: collectives whose transfer takes no time; None for no collectives.
            pieces_ns: by the index of a rank: lengths ``[step, piece]``. The phases of ``own_ns``
                are divided in proportion to these lengths.
        """
        found, first = [], 0
        for ranks, known in self.stretches:
            last = first + ranks.steps
            moved = None
            if own_ns is not None:
                divided = {place: ns[first:last] for place, ns in (pieces_ns or {}).items()}
                lengths = ranks.pieces.with_lengths(divided) if divided else None
                moved = ranks.with_own(own_ns[:, first:last], lengths)
            times = replay(ranks, known, moved, free)
            if times is None:
                return None
            found.append(times)
            first = last
        return np.concatenate(found)

    def changes(self, seen: MeasuredWorld, own: Floats) -> Iterator[tuple[_Change, Floats | None]]:
        """Yields each change with the step times of its replay; None if the ranks deadlock.

        ``own``: sum of each rank's own times over the counted steps, in ns.
        """
        total = float(own.max())
        places = np.argsort(-own, kind="stable")[:_MOST_RANKS].tolist()
        for place in places:
            late = self._late_steps(place)
            own_ns = self._as_others(place, late)
            faster = own_ns[place]
            spared = (self.own_ns[place] - faster)[self.counted].sum(axis=0)
            least = _LEAST_SHARE * total
            rank = self.ranks[place]
            if spared.sum() >= least:
                yield _Change("rank", rank), self._without_delay(place, late, own_ns)
            phases = np.flatnonzero(spared >= least)
            # If the whole gain lies in one phase, a row for this phase would repeat the rank's row.
            one_is_all = len(phases) == 1 and spared[phases[0]] < spared.sum() + least
            for phase in () if one_is_all else phases.tolist():
                one = self.own_ns.copy()
                one[place, :, phase] = faster[:, phase]
                yield (
                    _Change("phase", rank, PHASES[phase]),
                    self.step_ns(one, pieces_ns=self._pieces_as_others(place, late, phase)),
                )
        if len(self.ranks) > 2:
            mean = np.broadcast_to(self.own_ns.mean(axis=0), self.own_ns.shape)
            yield _Change("balance"), self.step_ns(mean, pieces_ns=self._mean_pieces_ns())
        for group, name in _groups(seen, self.group):
            yield _Change("group", group=name), self.step_ns(free=self.group == group)
        yield _Change("communication"), self.without_transfers()

    def _late_steps(self, place: int) -> npt.NDArray[np.bool_]:
        """Returns a mask over the counted steps: True where the rank at ``place`` is late.

        All False if the rank is late in no step or in all steps.
        """
        waited = self.waited_ns[:, self.counted]
        late_ns = np.delete(waited, place, axis=0).mean(axis=0) - waited[place]
        border = two_groups(late_ns)
        return np.zeros(len(late_ns), dtype=bool) if border is None else late_ns > border

    def _as_others(self, place: int, late: npt.NDArray[np.bool_]) -> Floats:
        """Returns own time ``[rank, step, phase]`` with one rank as fast as the others.

        ``place``: position of this rank in :attr:`ranks`. ``late``: as :meth:`_late_steps` returns
        it. Steps that are not counted keep their recorded times. There is one exception: in a step
        that begins a stretch, the rank gets the others' mean time, because otherwise the rank would
        be late in the next step.
        """
        kept = self.kept_ns[:, self.counted]
        work = self.own_ns[:, self.counted] - kept
        others = np.concatenate(np.delete(work, place, axis=0)[:, ~late])
        for part in (late, ~late):
            work[place, part] = _in_place_of(work[place, part], others)
        if kept.any():
            for of_rank in kept:
                of_rank[late] = _in_place_of(of_rank[late], of_rank[~late])
        found = self.own_ns.copy()
        found[:, self.counted] = work + kept
        every = np.delete(self.own_ns, place, axis=0)
        found[place, self.begun] = every[:, self.begun].mean(axis=0)
        return found

    def _pieces_ns(self, place: int) -> Floats | None:
        """Returns lengths ``[step, piece]`` of a rank's pieces; None if steps differ in pieces."""
        found = []
        for ranks, _ in self.stretches:
            rows = ranks.pieces.by_step(place)
            if rows is None:
                return None
            found.append(ranks.pieces.length_ns[ranks.pieces.of(place)][rows])
        return np.concatenate(found) if len({part.shape[1] for part in found}) == 1 else None

    def _of_alike(self, place: int) -> Floats | None:
        """Returns lengths ``[rank, step, piece]`` for the rank at ``place`` and ranks like it.

        These ranks have the same pieces in the same phases. The rank at ``place`` comes first. None
        if there are no such ranks.
        """
        if place not in self._alike:
            self._alike = {place: self._lengths_of_alike(place)}
        return self._alike[place]

    def _lengths_of_alike(self, index: int) -> Floats | None:
        alike = np.logical_and.reduce([ranks.pieces.alike(index) for ranks, _ in self.stretches])
        alike[index] = False
        if self._pieces_ns(index) is None or not alike.any():
            return None
        places = np.concatenate(([index], np.flatnonzero(alike)))
        lengths = []
        for ranks, _ in self.stretches:
            rows = ranks.pieces.by_step(index)
            assert rows is not None
            first = ranks.pieces.first[places][:, np.newaxis, np.newaxis]
            lengths.append(ranks.pieces.length_ns[first + rows])
        return np.concatenate(lengths, axis=1)

    def _mean_pieces_ns(self) -> dict[int, Floats]:
        """Returns the mean lengths of the ranks' pieces; empty if ranks have different pieces."""
        alike = self._of_alike(0)
        if alike is None or len(alike) < len(self.ranks):
            return {}
        return dict.fromkeys(range(len(alike)), alike.mean(axis=0))

    def _pieces_as_others(
        self, place: int, late: npt.NDArray[np.bool_], phase: int = -1
    ) -> dict[int, Floats]:
        """Returns lengths of one rank's pieces as if the rank were as fast as the others.

        Only ranks with the same pieces are compared; empty if there are none. If ``phase`` is
        given, only pieces of this phase change.
        """
        alike = self._of_alike(place)
        if alike is None:
            return {}
        own, key = alike[0], (place, late.tobytes())
        if key not in self._as_alike:
            mine = own[self.counted]
            others = np.concatenate(alike[1:, self.counted][:, ~late])
            for part in (late, ~late):
                mine[part] = _in_place_of(mine[part], others)
            self._as_alike = {key: mine}
        mine = self._as_alike[key]
        pieces = self.stretches[0][0].pieces
        rows = pieces.by_step(place)
        assert rows is not None
        of_step = pieces.phase[pieces.of(place)][rows[0]]
        chosen = np.ones(len(of_step), dtype=bool) if phase < 0 else of_step == phase
        found = own.copy()
        found[np.ix_(self.counted, chosen)] = mine[:, chosen]
        return {place: found}

    def _affected(self, late: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Adds the steps after late steps to the mask, unless too few other steps remain."""
        every = np.zeros(len(self.counted), dtype=bool)
        every[self.counted] = late
        every[1:] |= every[:-1].copy()
        found = every[self.counted]
        return found if (~found).sum() >= LEAST_STEPS else late

    def _without_delay(
        self, place: int, late: npt.NDArray[np.bool_], own_ns: Floats
    ) -> Floats | None:
        """Replays the steps as if the rank at ``place`` were as fast as the others."""
        counted = np.flatnonzero(self.counted)
        # Late steps keep their recorded times, so that the steps after them begin correctly.
        steps = own_ns.copy()
        steps[:, counted[late]] = self.own_ns[:, counted[late]]
        pieces_ns = self._pieces_as_others(place, late)
        recorded_ns = self._pieces_ns(place)
        if recorded_ns is not None and pieces_ns:
            pieces_ns[place][counted[late]] = recorded_ns[counted[late]]
        found = self.step_ns(steps, pieces_ns=pieces_ns)
        if found is None or not late.any():
            return found
        late = self._affected(late)
        work = (self.own_ns - self.kept_ns).sum(axis=2)
        mine = work[place, self.counted]
        others = np.delete(work, place, axis=0)[:, self.counted].mean(axis=0)
        longer = float(others[late].mean() - others[~late].mean())
        if 0 < longer < _COLD * others[~late].mean():
            longer *= _common(mine[~late], others[~late])
        instead = counted[~late][np.arange(late.sum()) * (~late).sum() // late.sum()]
        found[counted[late]] = found[instead] + longer
        return found


def _common(a: Floats, b: Floats) -> float:
    """Returns the fraction of the variance that two series share; 0 for opposite series."""
    if not (a.std() > 0 and b.std() > 0):
        return 0.0
    return max(0.0, float(np.corrcoef(a, b)[0, 1])) ** 2


def _in_place_of(mine: Floats, others: Floats) -> Floats:
    """Returns a copy of ``mine`` in which each column has the distribution of ``others``."""
    if not len(mine):
        return mine
    order = np.argsort(np.argsort(mine, axis=0, kind="stable"), axis=0)
    quantile = (np.arange(len(mine)) + 0.5) / len(mine)
    found: Floats = np.take_along_axis(np.quantile(others, quantile, axis=0), order, axis=0)
    return found


def _groups(seen: MeasuredWorld, group: Ints) -> list[tuple[int, str]]:
    """Returns index and name of the groups with the most collectives; empty for a single group."""
    sent = np.bincount(group[group >= 0], minlength=len(seen.matching.groups))
    used = [number for number in np.argsort(-sent, kind="stable").tolist() if sent[number]]
    if len(used) < 2:
        return []
    labels = [group.label for group in seen.matching.groups]
    found = []
    for number in used[:_MOST_GROUPS]:
        label = labels[number]
        if sum(labels[other] == label for other in used) > 1:
            ranks = np.unique(seen.matching.rank[seen.matching.group == number]).tolist()
            label = f"{label} {{{rank_list(ranks)}}}"
        found.append((number, label))
    return found


def saved_by(base: Floats, changed: Floats, is_sample: bool = False) -> Interval:
    """Returns the fraction of the mean step that a change saves, with an interval.

    Args:
        base: time of each step as recorded.
        changed: time of each step with the change.
        is_sample: True if the steps are a sample. The interval is then wider, because neighbouring
            steps are alike, and because the steps are few.
    """
    drawn = resampled_means(np.stack([base, changed], axis=1))
    saved, ratio = 1 - drawn[:, 1] / drawn[:, 0], float(changed.mean() / base.mean())
    if not is_sample:
        low, high = percentile_interval(saved).tolist()
        return Interval(1 - ratio, low, high)
    independent = worth(lag_one(changed - ratio * base))
    wider = 1 - ratio + (saved - (1 - ratio)) / math.sqrt(independent)
    count = max(2, round(len(base) * independent))
    return interval_of(1 - ratio, wider, count, 0.95)


def _gain(change: _Change, step_ms: float, saved: Interval) -> Gain:
    return Gain(change.change, change.rank, change.phase, change.group, step_ms, saved)
