"""All world sizes of a run side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commprof.analysis.align.summaries import SummaryResult
from commprof.analysis.checks.losses import LossAgreement
from commprof.analysis.collectives.kinds import SteplessCollectives
from commprof.analysis.late.attempts import Attempt
from commprof.analysis.late.incidents import Incidents
from commprof.analysis.step.overhead import Overhead, pooled_overhead
from commprof.analysis.world import WorldResult


@dataclass(frozen=True)
class Scaling:
    """Scaling of one world size against the smallest one with figures; NaN without another."""

    world_size: int
    #: Throughput over the smallest world size's throughput.
    speedup: float
    #: Speed-up over the growth in ranks; 1.0 is ideal.
    efficiency: float


@dataclass(frozen=True)
class RunResult:
    """All results of a run, ready to be rendered."""

    #: As written to ``run.json``: command, workload, versions, machine, date.
    context: Mapping[str, Any]
    worlds: tuple[WorldResult, ...]
    scaling: tuple[Scaling, ...]
    #: Over all world sizes; None without an overhead block.
    overhead: Overhead | None
    #: World sizes asked for that gave no figures, with the reason.
    failures: tuple[tuple[int, str], ...]
    #: What the reader must know, in sentences.
    remarks: tuple[str, ...]
    #: World sizes that always-on mode summarised; they may have figures in ``worlds`` too.
    summaries: tuple[SummaryResult, ...] = ()
    #: None where world sizes need not train alike.
    loss_agreement: LossAgreement | None = None
    #: Of jobs that were restarted: every start of all ranks, in order.
    attempts: tuple[Attempt, ...] = ()
    #: World sizes with hangs, ranks out of step, or changes of level.
    incidents: tuple[Incidents, ...] = ()
    #: Candidates of a trial took turns in the steps.
    in_turns: bool = False
    #: World sizes in which no step was recorded, but collectives were.
    stepless: tuple[SteplessCollectives, ...] = ()


def scale(worlds: Sequence[WorldResult]) -> tuple[Scaling, ...]:
    """Computes speed-up and efficiency over the smallest world size; one alone has no baseline."""
    if len(worlds) < 2:
        return tuple(Scaling(world.world_size, math.nan, math.nan) for world in worlds)
    base = min(worlds, key=lambda world: world.world_size)
    return tuple(
        Scaling(
            world_size=world.world_size,
            speedup=world.samples_per_s / base.samples_per_s,
            efficiency=(world.samples_per_s / world.world_size)
            / (base.samples_per_s / base.world_size),
        )
        for world in worlds
    )


def pool_overhead(worlds: Sequence[WorldResult]) -> Overhead | None:
    """Pools commprof's own cost over all world sizes."""
    return pooled_overhead([world.overhead_samples for world in worlds])
