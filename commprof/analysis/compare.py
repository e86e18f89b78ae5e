"""Comparison of two recorded runs: the figures that changed by more than chance.

The measured steps of each world size that both runs have are compared. A figure counts as changed
if the rank test over the steps (``step_test``) gives p < 5 % and the 95 % interval of the ratio of
medians excludes 1. The test and the interval treat correlated steps as a smaller number of
independent steps. The p-value of the step is corrected for the number of world sizes. The p-values
of parts and collectives are corrected for the number of parts and collectives at a world size. The
test distinguishes two runs, not two programs: something else may also have changed on the machine
between the runs.

If the ranks of a run lacked cores, other load on the machine may have lengthened the steps. Such
load differs between runs but hardly varies within a run, so the test cannot measure its effect. In
this case, the step counts as changed only if the step time less run delay changed too. Run delay is
the time in which ranks could run but had no core. Parts and collectives then count as changed only
if the step does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from commprof.analysis.align.matching import NO_BUCKET
from commprof.analysis.collectives.in_flight import CallKind, StepTimesInFlight
from commprof.analysis.detail import OF_OTHER, PARTS, WorldDetail
from commprof.analysis.evidence import Figure
from commprof.analysis.scaling import RunResult
from commprof.analysis.world import WorldResult
from commprof.stats.intervals import Floats, Interval, ratio_of_medians
from commprof.stats.rank_tests import (
    SIGNIFICANCE,
    adjusted,
    independent_share,
    smallest_p_value,
    step_test,
)
from commprof.text import plain_digits
from commprof.trace.columns import Ints
from commprof.trace.lookup import distinct_rows
from commprof.units import NS_PER_MS

#: A kind of call, and its bucket's index or ``NO_BUCKET``.
_Kind: TypeAlias = "tuple[CallKind, int]"
#: Largest number of compared steps. Of a longer run, steps are left out evenly to save time.
_MOST_STEPS = 1000
#: Each run adds at most this many kinds of calls to the comparison.
_MOST_KINDS = 24
#: Ranks count as lacking cores if they had no core for at least this fraction of their time outside
#: of waiting.
_BUSY = 0.03
#: Entries of a run's context that are not settings: results, and entries that differ between any
#: two runs.
_NO_SETTINGS = {
    *("timestamp", "errors", "description", "world_sizes"),
    *("machine.boot_id", "machine.time_namespace", "machine.pid_namespace"),
}


@dataclass(frozen=True)
class Change:
    """One figure of two runs, as medians over the steps in ms."""

    #: "step" for the step of the slowest rank, or the name of a part of the step (mean over ranks),
    #: or of a kind of collective.
    name: str
    a_ms: float
    b_ms: float
    #: B divided by A; NaN if it cannot be computed. The bounds are NaN if there is no p-value.
    ratio: Interval
    #: Corrected for the number of comparisons, except in ``WorldComparison.with_cores``. NaN if a
    #: run lacks the figure or has too few steps, or if a lack of cores may explain the change.
    p_value: float

    @property
    def significant(self) -> bool:
        """True if the two runs differ by more than chance."""
        known = not math.isnan(self.ratio.value)
        return known and self.p_value < SIGNIFICANCE and not self.ratio.contains(1.0)


@dataclass(frozen=True)
class WorldComparison:
    """Comparison of one world size that both runs have."""

    world_size: int
    steps: tuple[int, int]
    #: For each run: number of independent steps that carry as much information as the compared
    #: steps, which are correlated.
    effective_steps: tuple[float, float]
    #: Fraction of each run's time outside of waiting in which the ranks had no core.
    no_core_share: tuple[float, float]
    #: "step", then the parts of the step in the order of ``detail.PARTS``. Parts of a device are
    #: included only if kernels were recorded.
    parts: tuple[Change, ...]
    #: Step time less run delay, as a mean over ranks; see ``WorldDetail.with_cores_ms``.
    with_cores: Change
    #: Mean time in flight of each kind of call; the longest is first.
    collectives: tuple[Change, ...]

    @property
    def step(self) -> Change:
        """Change of the slowest rank's step."""
        return self.parts[0]

    @property
    def is_busy(self) -> bool:
        """True if ranks of either run lacked cores."""
        return any(share >= _BUSY for share in self.no_core_share)  # NaN (unknown) gives False

    @property
    def too_short(self) -> bool:
        """True if there are too few independent steps for any difference to be significant."""
        return smallest_p_value(*self.effective_steps) >= SIGNIFICANCE


@dataclass(frozen=True)
class Setting:
    """A setting that differs between two runs; "-" if a run does not have the setting."""

    name: str
    a: str
    b: str


@dataclass(frozen=True)
class NotCompared:
    """Figures that are not compared, because one run's recordings do not support them."""

    #: "A" or "B".
    run: str
    world_size: int
    #: The figures, as the subject of a sentence.
    figures: str
    #: What the recordings lack, as a clause.
    lacking: str


@dataclass(frozen=True)
class RunComparison:
    """Comparison of run A with run B, for each world size that both have."""

    a: str
    b: str
    worlds: tuple[WorldComparison, ...]
    #: World sizes with figures in run A only.
    only_a: tuple[int, ...]
    #: World sizes with figures in run B only.
    only_b: tuple[int, ...]
    settings: tuple[Setting, ...]
    #: Names ("A", "B") of the runs that have only summaries of always-on mode. Such runs have no
    #: figures of single steps.
    summarised: tuple[str, ...] = ()
    #: At most one entry for each run, world size and kind of figures.
    not_compared: tuple[NotCompared, ...] = ()

    def slower_by_more_than(self, share: float) -> tuple[WorldComparison, ...]:
        """Returns the world sizes whose step is significantly longer in B than in A.

        Args:
            share: fraction of A's step; B's step must exceed A's by more than this.
        """
        return tuple(
            world
            for world in self.worlds
            if world.step.significant and world.step.ratio.value > 1 + share
        )


def compare_runs(
    names: tuple[str, str],
    a: tuple[RunResult, Sequence[WorldDetail]],
    b: tuple[RunResult, Sequence[WorldDetail]],
) -> RunComparison:
    """Compares two runs, given as ``analyse_in_detail`` returns them."""
    ours, theirs = ({detail.world_size: detail for detail in run[1]} for run in (a, b))
    both = sorted(ours.keys() & theirs.keys())
    worlds = [_world(ours[size], theirs[size]) for size in both]
    p_values = adjusted([world.step.p_value for world in worlds])
    return RunComparison(
        a=names[0],
        b=names[1],
        worlds=tuple(_with_step(*each) for each in zip(worlds, p_values, strict=True)),
        only_a=tuple(sorted(ours.keys() - theirs.keys())),
        only_b=tuple(sorted(theirs.keys() - ours.keys())),
        settings=_settings(a[0].context, b[0].context),
        summarised=tuple(
            name for name, run in (("A", a), ("B", b)) if run[0].summaries and not run[1]
        ),
        not_compared=tuple(
            each
            for name, run in (("A", a), ("B", b))
            for world in run[0].worlds
            if world.world_size in both
            for each in _not_compared(name, world)
        ),
    )


def _not_compared(run: str, world: WorldResult) -> Iterator[NotCompared]:
    of, size = world.evidence, world.world_size
    if lacking := of.lacking(Figure.PARTS):
        yield NotCompared(run, size, "the parts of the step", lacking)
    elif lacking := of.lacking(Figure.EXPOSED):
        yield NotCompared(run, size, "exposed times", lacking)
    if not of.steps_marked:
        repeats = "no step is marked, so each repetition of the calls counts as a step"
        yield NotCompared(run, size, "begin and end of the steps", repeats)
    if lacking := of.lacking(Figure.CALLS):
        yield NotCompared(run, size, "times of collectives", lacking)


def _world(a: WorldDetail, b: WorldDetail) -> WorldComparison:
    parts = [_change("step", a.slowest_ms, b.slowest_ms)]
    parts += [
        _change(name, *(_over_ranks(run.parts_ms[name]) for run in (a, b)))
        for name in PARTS
        if name != "step" and (name not in OF_OTHER or _has(name, a) or _has(name, b))
    ]
    in_flight = a.in_flight, b.in_flight
    numbered = all(bool((calls.bucket != NO_BUCKET).any()) for calls in in_flight)
    before, after = _by_kind(in_flight, numbered)
    nothing = np.zeros(0)
    kinds = [
        _change(name, before.get(kind, nothing), after.get(kind, nothing))
        for kind, name in _names(before.keys() | after.keys()).items()
    ]
    where = [*parts[1:], *kinds]
    p_values = adjusted([change.p_value for change in where])
    where = [replace(each, p_value=p) for each, p in zip(where, p_values, strict=True)]
    collectives = sorted(where[len(parts) - 1 :], key=_longest_first)
    thinned = _thinned(a.slowest_ms), _thinned(b.slowest_ms)
    share = independent_share(*thinned)
    return WorldComparison(
        world_size=a.world_size,
        steps=(len(a.steps), len(b.steps)),
        effective_steps=(len(thinned[0]) * share, len(thinned[1]) * share),
        no_core_share=(a.no_core_share, b.no_core_share),
        parts=(parts[0], *where[: len(parts) - 1]),
        with_cores=_change("step minus time without a core", a.with_cores_ms, b.with_cores_ms),
        collectives=tuple(collectives),
    )


def _has(name: str, detail: WorldDetail) -> bool:
    return not bool(np.isnan(detail.parts_ms[name]).all())


def _with_step(world: WorldComparison, p_value: float) -> WorldComparison:
    step = replace(world.step, p_value=p_value)
    if not world.is_busy or (step.significant and world.with_cores.significant):
        return replace(world, parts=(step, *world.parts[1:]))
    return replace(
        world,
        parts=(
            _without_interval(step) if step.significant else step,
            *map(_without_interval, world.parts[1:]),
        ),
        collectives=tuple(map(_without_interval, world.collectives)),
    )


def _without_interval(change: Change) -> Change:
    return replace(change, ratio=Interval(change.ratio.value, math.nan, math.nan), p_value=math.nan)


def _longest_first(change: Change) -> tuple[float, str]:
    return -float(np.nanmax([change.a_ms, change.b_ms])), change.name


def _change(name: str, a: Floats, b: Floats) -> Change:
    a, b = _thinned(a), _thinned(b)
    medians = [float(np.median(values)) if len(values) else math.nan for values in (a, b)]
    ratio, p_value = _ratio(b, a), step_test(a, b)
    if math.isnan(p_value):  # then the interval of the ratio is not reliable either
        ratio = Interval(ratio.value, math.nan, math.nan)
    return Change(name, medians[0], medians[1], ratio, p_value)


def _ratio(b: Floats, a: Floats) -> Interval:
    unknown = Interval(math.nan, math.nan, math.nan)
    if len(a) == 0 or len(b) == 0:
        return unknown
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = ratio_of_medians(b, a, independent_share(a, b))
    return ratio if math.isfinite(ratio.value + ratio.low + ratio.high) else unknown


def _over_ranks(values: Floats) -> Floats:
    mean: Floats = values.mean(axis=0)
    return mean[~np.isnan(mean)]


def _thinned(values: Floats) -> Floats:
    kept = min(len(values), _MOST_STEPS)
    return values[np.arange(kept) * len(values) // max(1, kept)]


def _by_kind(runs: Sequence[StepTimesInFlight], numbered: bool) -> list[dict[_Kind, Floats]]:
    """Returns for each run the mean time in flight of each kind of call in ms, per step.

    Steps without calls of the kind are left out. A kind is included if it is among the
    ``_MOST_KINDS`` kinds with the longest total time in one of the runs.

    Args:
        runs: times in flight of the runs' calls.
        numbered: True if each bucket is a kind of its own; all runs must record bucket indices.
    """
    found = [_InFlight.of(run, numbered) for run in runs]
    longest = {kind for calls in found for kind in calls.longest()}
    return [
        {kind: calls.per_step_ms(kind) for kind in calls.number if kind in longest}
        for calls in found
    ]


@dataclass(frozen=True)
class _InFlight:
    number: dict[_Kind, int]
    #: For each row of ``calls``, the index of its kind.
    kind: Ints
    calls: StepTimesInFlight

    @classmethod
    def of(cls, calls: StepTimesInFlight, numbered: bool) -> _InFlight:
        bucket = calls.bucket if numbered else np.full_like(calls.bucket, NO_BUCKET)
        row, first = distinct_rows(calls.kind, bucket)
        kinds = zip(calls.kind[first].tolist(), bucket[first].tolist(), strict=True)
        number = {(calls.kinds[kind], bucket): place for place, (kind, bucket) in enumerate(kinds)}
        return cls(number, row, calls)

    def longest(self) -> list[_Kind]:
        total = np.bincount(self.kind, weights=self.calls.time_ns, minlength=len(self.number))
        kinds = list(self.number)
        return [kinds[place] for place in np.argsort(-total, kind="stable")[:_MOST_KINDS].tolist()]

    def per_step_ms(self, kind: _Kind) -> Floats:
        mine = self.kind == self.number[kind]
        step = self.calls.step[mine]
        count = np.bincount(step, weights=self.calls.calls[mine])
        summed = np.bincount(step, weights=self.calls.time_ns[mine])
        return summed[count > 0] / count[count > 0] / NS_PER_MS


def _names(kinds: Set[_Kind]) -> dict[_Kind, str]:
    rounded = {k: _name(*k, f"{plain_digits(k[0].size_bytes / 1e6, 4)} MB") for k in kinds}
    uses = Counter(rounded.values())
    return {
        kind: name if uses[name] == 1 else _name(*kind, f"{kind[0].size_bytes:,} B")
        for kind, name in rounded.items()
    }


def _name(kind: CallKind, bucket: int, size: str) -> str:
    numbered = "" if bucket == NO_BUCKET else f"bucket {bucket}"
    size, group = size if kind.size_bytes else "", f"group {kind.group}" if kind.group else ""
    return " ".join(filter(None, (kind.op, kind.dtype, size, numbered, group)))


def _settings(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Setting, ...]:
    ours, theirs = _flat(a), _flat(b)
    return tuple(
        Setting(name, ours.get(name, "-"), theirs.get(name, "-"))
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name, "-") != theirs.get(name, "-")
    )


def _flat(context: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flattens ``{"machine": {"a": 1}}`` to ``{"machine.a": "1"}``, without ``_NO_SETTINGS``."""
    found: dict[str, str] = {}
    for key, value in context.items():
        if f"{prefix}{key}" in _NO_SETTINGS:
            continue
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = str(value)
    return found
