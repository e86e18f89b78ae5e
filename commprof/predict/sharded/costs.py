"""How many times as long a collective takes in a scenario as it took in the recorded run.

Its recorded transfer is scaled by what the fitted costs say of both, so that what they miss of the
recorded one they do not miss again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from commprof.predict.fit.links import ScenarioLink, scenario_link
from commprof.predict.fit.machine_profile import MachineProfile
from commprof.predict.replay.algorithms import OPERATIONS
from commprof.predict.replay.scenario import FLAT, Scenario
from commprof.predict.replay.schedule import Placement
from commprof.predict.sharded.changes import Change, ChangedCall
from commprof.predict.sharded.steps import ALL, SHARD, Call, ShardedSteps

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Cost:
    link: ScenarioLink
    op: str
    size_bytes: float
    ranks: int

    def time_s(self, number: int | None) -> float:
        """With a replicate's parameters, by its number."""
        link = self.link if number is None else self.link.replicate(number)
        return link.time_s(self.size_bytes, self.ranks, self.op)


@dataclass(frozen=True)
class Factors:
    """Of each collective of a changed step: its cost there, and that of the recorded one."""

    #: None where nothing changes.
    pairs: tuple[tuple[_Cost, _Cost] | None, ...]
    outside: tuple[str, ...]
    remarks: tuple[str, ...]

    def values(self, number: int | None = None) -> Floats:
        """Factors, of a bootstrap replicate of the costs if one is named."""
        return np.array([_ratio(pair, number) for pair in self.pairs])


def _ratio(pair: tuple[_Cost, _Cost] | None, number: int | None) -> float:
    if pair is None:
        return 1.0
    there, here = (cost.time_s(number) for cost in pair)
    return there / here if here > 0 else 1.0


def factors(
    steps: ShardedSteps,
    profile: MachineProfile,
    scenario: Scenario,
    placement: Placement,
    changed: Change,
) -> Factors:
    """Of each collective.

    Raises:
        CommprofError: a link that it crosses was not measured; names the next step.
    """
    if scenario.changes_link:
        scenario_link(profile, scenario, placement)  # says why where they have no such link
    recorded = Scenario(steps.world_size)
    pairs: list[tuple[_Cost, _Cost] | None] = []
    outside: list[str] = []
    remarks: list[str] = []
    for each in changed.calls:
        before = steps.calls[each.recorded]
        if before.op not in OPERATIONS:
            remarks.append(f"no cost is known for {before.op}: taken as recorded")
            pairs.append(None)
            continue
        ranks = ranks_of(steps, before)
        same = (each.call.op, each.call.size_bytes, each.call.among, each.ranks)
        moved = scenario.changes_link or placement != steps.placement
        if same == (before.op, before.size_bytes, before.among, ranks) and not moved:
            pairs.append(None)
            continue
        there = _link(profile, scenario, placement, each, changed.shard_ranks)
        here = _link(
            profile,
            recorded,
            steps.placement,
            ChangedCall(before, ranks, each.recorded),
            steps.shard_ranks,
        )
        outside += _outside(there, each)
        remarks += there.remarks
        pairs.append(
            (
                _Cost(there, each.call.op, each.call.size_bytes, each.ranks),
                _Cost(here, before.op, before.size_bytes, ranks),
            )
        )
    return Factors(tuple(pairs), tuple(dict.fromkeys(outside)), tuple(dict.fromkeys(remarks)))


def ranks_of(steps: ShardedSteps, call: Call) -> int:
    """Ranks that take part in a recorded collective."""
    if call.among == ALL:
        return steps.world_size
    return steps.shard_ranks if call.among == SHARD else steps.world_size // steps.shard_ranks


def _link(
    profile: MachineProfile,
    scenario: Scenario,
    placement: Placement,
    each: ChangedCall,
    shard_ranks: int,
) -> ScenarioLink:
    """Of the links that one group's ring crosses: those of one copy are neighbours."""
    per_host = placement.ranks_per_host
    if each.call.among not in (ALL, SHARD):
        per_host = max(1.0, per_host // shard_ranks)
    per_host = min(per_host, each.ranks)
    asked = replace(scenario, world_size=each.ranks, algorithm=FLAT)
    if each.ranks <= max(1, round(per_host)):
        asked = replace(asked, bandwidth_bytes_per_s=math.nan, latency_s=math.nan)
    return scenario_link(profile, asked, replace(placement, ranks_per_host=per_host), each.call.op)


def _outside(link: ScenarioLink, each: ChangedCall) -> Sequence[str]:
    name = each.call.op.replace("_", "-")
    reasons = link.slowest.outside([each.call.size_bytes], each.ranks)
    return [*link.outside, *(f"{name}: {reason}" for reason in reasons)]
