"""Computes the time of a collective in a scenario from its time in the recorded run.

Fitted curves give two costs of each collective: in the scenario, and in the recorded run. The
difference of the two costs is added to the recorded time. So the part of the recorded time that the
curves do not explain, such as the effect of a busy host, is kept.

In two cases the recorded time is multiplied by the ratio of the two costs instead. In the first
case, the scenario replaces the operation by another one. In the second case, neither the recorded
time nor the scenario's cost exceeds the recorded run's cost.

This module also fits curves to the collectives of recorded steps: a straight line for each
operation. A collective's transfer is the time from when the collective could begin to its end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from commprof.forecast.costs.algorithms import OPERATIONS, work
from commprof.forecast.costs.cost_model import CostCurve, Piece
from commprof.forecast.costs.machine_profile import MachineProfile
from commprof.forecast.costs.regression import Line, relative_residuals, robust_line
from commprof.forecast.scenario.links import ScenarioLink, scenario_link
from commprof.forecast.scenario.scenario import FLAT, Scenario
from commprof.forecast.scenario.schedule import Placement
from commprof.forecast.sharded.changes import ChangedCall, ShardedChange
from commprof.forecast.sharded.steps import ALL, SHARD, ShardedCall, ShardedSteps, ranks_among
from commprof.stats.intervals import percentile_interval

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Cost:
    link: ScenarioLink
    op: str
    size_bytes: float
    ranks: int

    def time_s(self, number: int | None) -> float:
        link = self.link if number is None else self.link.replicate(number)
        return link.time_s(self.size_bytes, self.ranks, self.op)


@dataclass(frozen=True)
class Factors:
    """Two fitted costs of each collective: in the scenario, and in the recorded run."""

    #: Cost in the scenario, and cost as recorded; None if the recorded time is kept.
    pairs: tuple[tuple[_Cost, _Cost] | None, ...]
    outside: tuple[str, ...]
    remarks: tuple[str, ...]

    def costs(self, number: int | None = None) -> ShardedCosts:
        """Returns the fitted costs in ns, or the costs of bootstrap replicate ``number``."""
        times_s = [
            None if pair is None else [c.time_s(number) for c in pair] for pair in self.pairs
        ]
        there, here = np.array([[0.0, 0.0] if each is None else each for each in times_s]).T * 1e9
        is_known = np.array([each is not None for each in times_s]) & (here > 0)
        other = [pair is not None and pair[0].op != pair[1].op for pair in self.pairs]
        return ShardedCosts(there, here, is_known, np.array(other))


@dataclass(frozen=True)
class ShardedCosts:
    """Costs in ns of each collective of the step after the scenario's changes."""

    #: Cost in the scenario, and cost as recorded.
    there_ns: Floats
    here_ns: Floats
    #: True if the recorded time is converted; False if it is kept.
    known: Mask
    #: True if the scenario replaces the operation by another one.
    other: Mask

    def of(self, transfer_ns: Floats) -> Floats:
        """Converts recorded times to scenario times in ns, as ``[collective, drawn step]``."""
        there, here = self.there_ns[:, np.newaxis], self.here_ns[:, np.newaxis]
        known, other = self.known[:, np.newaxis], self.other[:, np.newaxis]
        scaled = transfer_ns * np.divide(there, here, out=np.ones_like(there), where=known)
        beyond = transfer_ns - here
        # With ``there + beyond``, a short transfer on a much faster link would become negative.
        moved = np.where((beyond > 0) | (there > here), there + beyond, scaled)
        result: Floats = np.where(known & ~other, np.maximum(0.0, moved), scaled)
        return result


def factors(
    steps: ShardedSteps,
    profile: MachineProfile,
    scenario: Scenario,
    placement: Placement,
    changed: ShardedChange,
) -> Factors:
    """Computes each collective's cost in the scenario, and the cost of its recorded counterpart.

    Raises:
        CommprofError: a link that a collective uses was not measured.
    """
    if scenario.changes_link:
        scenario_link(profile, scenario, placement)  # raises if no rank uses the changed link
    recorded = Scenario(steps.world_size)
    pairs: list[tuple[_Cost, _Cost] | None] = []
    outside: list[str] = []
    remarks: list[str] = []
    for call in changed.calls:
        before = steps.calls[call.recorded]
        if before.op not in OPERATIONS:
            remarks.append(f"{before.op}: the recorded time is kept, because no cost is known")
            pairs.append(None)
            continue
        ranks = ranks_of(steps, before)
        same = (call.call.op, call.call.size_bytes, call.call.among, call.ranks)
        moved = scenario.changes_link or placement != steps.placement
        if same == (before.op, before.size_bytes, before.among, ranks) and not moved:
            pairs.append(None)
            continue
        there = _link(profile, scenario, placement, call, changed.shard_ranks)
        here = _link(
            profile,
            recorded,
            steps.placement,
            ChangedCall(before, ranks, call.recorded),
            steps.shard_ranks,
        )
        outside += _outside(there, call)
        remarks += there.remarks
        pairs.append(
            (
                _Cost(there, call.call.op, call.call.size_bytes, call.ranks),
                _Cost(here, before.op, before.size_bytes, ranks),
            )
        )
    return Factors(tuple(pairs), tuple(dict.fromkeys(outside)), tuple(dict.fromkeys(remarks)))


def ranks_of(steps: ShardedSteps, call: ShardedCall) -> int:
    """Returns the number of ranks that take part in a recorded collective."""
    return ranks_among(call.among, steps.world_size, steps.shard_ranks)


def _link(
    profile: MachineProfile,
    scenario: Scenario,
    placement: Placement,
    call: ChangedCall,
    shard_ranks: int,
) -> ScenarioLink:
    """Returns the cost of a collective on the links that its ranks use.

    Assumes that the ranks that share a copy of the model have consecutive numbers.
    """
    per_host = placement.ranks_per_host
    if call.call.among not in (ALL, SHARD):
        per_host = max(1.0, per_host // shard_ranks)
    per_host = min(per_host, call.ranks)
    asked = replace(scenario, world_size=call.ranks, algorithm=FLAT)
    if call.ranks <= max(1, round(per_host)):
        asked = replace(asked, bandwidth_bytes_per_s=math.nan, latency_s=math.nan)
    return scenario_link(profile, asked, replace(placement, ranks_per_host=per_host), call.call.op)


def _outside(link: ScenarioLink, call: ChangedCall) -> Sequence[str]:
    name = call.call.op.replace("_", "-")
    reasons = link.slowest.outside([call.call.size_bytes], call.ranks, call.call.op)
    return [*link.outside, *(f"{name}: {reason}" for reason in reasons)]


_REPLICATES = 20
_SEED = 20240501
#: Sizes that differ by less than this factor count as one size.
_APART = 1.2


@dataclass(frozen=True)
class _Point:
    #: Bytes per step of the collective's algorithm.
    x: float
    ranks: int
    #: Seconds per step of the algorithm (mean of the ranks), for each training step.
    y: Floats


def fit_sharded(recorded: Sequence[ShardedSteps]) -> dict[str, CostCurve]:
    """Fits a curve per operation to sharded steps of one link class (same host or other host)."""
    points: dict[str, list[_Point]] = {}
    for steps in recorded:
        for number, call in enumerate(steps.calls):
            ranks = ranks_of(steps, call)
            if call.op not in OPERATIONS or ranks < 2:
                continue
            done = work(call.op, ranks, steps.backend)
            y = steps.transfer_ns[:, :, number].mean(axis=1) / 1e9 / done.steps
            points.setdefault(call.op, []).append(
                _Point(done.step_bytes(call.size_bytes), ranks, y)
            )
    crowded = max(each.placement.ranks_per_core for each in recorded)
    curves = ((op, _curve(op, recorded[0].backend, mine, crowded)) for op, mine in points.items())
    return {op: curve for op, curve in curves if curve is not None}


def _curve(
    op: str, backend: str, points: Sequence[_Point], ranks_per_core: float
) -> CostCurve | None:
    # A call without bytes or without transfer time shows neither latency nor rate.
    points = [point for point in points if point.x > 0 and np.median(point.y) > 0]
    if not points:
        return None
    x = np.array([point.x for point in points])
    y = np.array([float(np.median(point.y)) for point in points])
    line = _line(x, y)
    drawn = list(_drawn(x, points))
    low, high = percentile_interval(drawn)
    residuals = np.abs(relative_residuals(line, x, y))
    piece = Piece(0.0, *line, (float(low[0]), float(high[0])), (float(low[1]), float(high[1])))
    return CostCurve(
        op=op,
        backend=backend,
        pieces=(piece,),
        step_bytes=(float(x.min()), float(x.max())),
        world_sizes=tuple(sorted({point.ranks for point in points})),
        ranks_per_core=ranks_per_core,
        residual=float(np.sqrt((residuals**2).mean())),
        worst_residual=float(residuals.max()),
        replicates=tuple((point,) for point in drawn),
        source="calls",
    )


def _line(x: Floats, y: Floats) -> Line:
    # With one size, latency cannot be separated from rate: all time is attributed to the rate.
    if x.max() < _APART * x.min():
        return 0.0, float(np.median(y / x))
    return robust_line(x, y)


def _drawn(x: Floats, points: Sequence[_Point]) -> Iterable[Line]:
    """Yields bootstrap replicates of the line."""
    random = np.random.default_rng(_SEED)
    for _ in range(_REPLICATES):
        y = [float(np.median(random.choice(point.y, len(point.y)))) for point in points]
        yield _line(x, np.maximum(y, 1e-12))
