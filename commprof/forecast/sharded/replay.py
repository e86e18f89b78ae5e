"""Replays recorded steps of FSDP2, HSDP or ZeRO stage 1 in another setting."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from commprof.errors import CommprofError
from commprof.forecast.costs.algorithms import OPERATIONS, work
from commprof.forecast.scenario.model import (
    STEPS,
    Medians,
    Model,
    Replayed,
    Replicated,
    few_recorded,
    new_random,
    replicated,
)
from commprof.forecast.scenario.scenario import FLAT, WEAK, Scenario
from commprof.forecast.scenario.schedule import Placement
from commprof.forecast.sharded.changes import ShardedChange, change
from commprof.forecast.sharded.costs import Factors, ShardedCosts, factors
from commprof.forecast.sharded.crowding import costed, crowding
from commprof.forecast.sharded.steps import ShardedSteps
from commprof.forecast.sharded.world import World

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_STEPS_PER_REPLICATE = 20


@dataclass(frozen=True)
class ShardedReplay(Model):
    """A model that replays recorded sharded steps with fitted costs."""

    schedule: ShardedSteps

    def replayed(self, scenario: Scenario) -> tuple[Replicated, Replayed]:
        """Replays a scenario, then again for each bootstrap replicate.

        Each replicate draws other recorded steps and has its own fitted costs.
        """
        _refuse(self.schedule, scenario)
        placement = self.schedule.placement.changed(scenario)
        changed = change(self.schedule, scenario)
        crowded = costed(self.schedule, placement)
        costs = factors(self.schedule, self.profile, scenario, crowded, changed)
        fitted, random = costs.costs(), new_random()
        world, outside, drawn = self._world(scenario, placement, changed, fitted, random)
        medians = replicated(
            _medians(world, drawn, fitted),
            len(self.schedule.own_ns),
            random,
            lambda number, rows: _medians(
                world, world.draw(_STEPS_PER_REPLICATE, random, rows), costs.costs(number)
            ),
        )
        return medians, _replayed(world, costs, drawn, outside)

    def _world(
        self,
        scenario: Scenario,
        placement: Placement,
        changed: ShardedChange,
        costs: ShardedCosts,
        random: np.random.Generator,
    ) -> tuple[World, list[str], Ints]:
        """Returns the scenario's world, its parts outside the measured range, and drawn steps."""
        recorded, outside = self.schedule.placement, []
        # The optimizer's time is proportional to the rank's share of the parameters.
        update = self.schedule.shard_ranks / changed.shard_ranks
        world = World(self.schedule, changed, scenario.world_size, update)
        drawn = world.draw(STEPS, random)
        if not math.isclose(placement.threads_sharing, recorded.threads_sharing, rel_tol=1e-3):
            step_ns = _medians(world, drawn, costs).step_s * 1e9
            own_ns = float(np.median(world.own_ns(drawn)))
            found = crowding(self.schedule, changed, placement, step_ns, own_ns)
            world = replace(world, crowding=found)
            longer = "as long"
            if not math.isnan(recorded.busy):
                longer = f"{np.median(world.own_ns(drawn)) / own_ns:.3g} times as long"
            outside.append(
                f"{placement.per_core_words(recorded)}: a rank's own work is assumed to take "
                f"{longer} as in the recorded run"
            )
        blocks = scenario.world_size / self.schedule.world_size
        if blocks > len(self.schedule.own_ns):
            outside.append(few_recorded(scenario.world_size, len(self.schedule.own_ns)))
        return world, outside, drawn


def _refuse(steps: ShardedSteps, scenario: Scenario) -> None:
    """Raises ``CommprofError`` for options that need a run of DDP."""
    unknown = {
        "--bucket-cap-mb": not math.isnan(scenario.bucket_cap_bytes),
        "--hook": bool(scenario.hook),
        "--scaling strong": scenario.scaling != WEAK and scenario.world_size != steps.world_size,
        "--algorithm": scenario.algorithm != FLAT,
    }
    for option, given in unknown.items():
        if given:
            raise CommprofError(
                f"{option} needs a run of DistributedDataParallel; this run shards parameters, "
                "gradients or optimizer state"
            )


def _medians(world: World, drawn: Ints, costs: ShardedCosts) -> Medians:
    done, free = world.replay(drawn, costs), world.replay(drawn, None)
    step = float(np.median(done.end_ns.max(axis=0)))
    exposed = float(np.median(done.stood_ns.mean(axis=0)))
    # Without transfers a rank waits only for other ranks.
    wait = min(exposed, float(np.median(free.stood_ns.mean(axis=0))))
    hidden = max(0.0, world.busy_ns(drawn, costs) - (exposed - wait))
    return Medians(*(ns / 1e9 for ns in (step, wait, exposed - wait, exposed, hidden)))


def _replayed(world: World, costs: Factors, drawn: Ints, outside: list[str]) -> Replayed:
    free = world.replay(drawn, None)
    return Replayed(
        bare_s=float(np.median(free.end_ns.max(axis=0))) / 1e9,
        busy_s=world.busy_ns(drawn, costs.costs()) / 1e9,
        own_s=float(np.median(world.own_ns(drawn))) / 1e9,
        batch=world.steps.batch.per_rank * world.change.passes / world.steps.passes,
        buckets=len(world.change.calls),
        sent_bytes=_sent_bytes(world),
        outside=tuple(dict.fromkeys((*outside, *costs.outside))),
        remarks=(*world.change.remarks, *costs.remarks),
        crowding_s=world.crowding.longer_ns / 1e9,
    )


def _sent_bytes(world: World) -> float:
    backend = world.steps.backend
    return sum(
        work(changed.call.op, changed.ranks, backend).sent * changed.call.size_bytes
        for changed in world.change.calls
        if changed.call.op in OPERATIONS
    )
