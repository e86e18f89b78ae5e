"""Result of a run over all world sizes, with speed-up and efficiency."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commprof.analysis.checks.losses import LossAgreement
from commprof.analysis.collectives.kinds import SteplessCollectives
from commprof.analysis.collectives.nccl import NcclWorld
from commprof.analysis.late.attempts import Attempt
from commprof.analysis.late.incidents import Incidents
from commprof.analysis.step.overhead import Overhead, pooled_overhead
from commprof.analysis.summary_result import SummaryResult
from commprof.analysis.world import WorldResult


@dataclass(frozen=True)
class Scaling:
    """Scaling of one world size relative to the smallest; NaN if there is only one world size."""

    world_size: int
    #: Throughput divided by the throughput of the smallest world size.
    speedup: float
    #: Speed-up divided by the growth in ranks; 1.0 is ideal.
    efficiency: float


@dataclass(frozen=True)
class RunResult:
    """All results of a run, ready to be rendered."""

    #: Content of ``run.json``: command, workload, versions, machine, date.
    context: Mapping[str, Any]
    worlds: tuple[WorldResult, ...]
    scaling: tuple[Scaling, ...]
    #: commprof's own cost over all world sizes; None if too few steps measured it.
    overhead: Overhead | None
    #: Requested world sizes that failed or have no figures, with the reason.
    failures: tuple[tuple[int, str], ...]
    #: Sentences with caveats for the reader.
    remarks: tuple[str, ...]
    #: Summaries of always-on mode. A world size may have figures in ``worlds`` too.
    summaries: tuple[SummaryResult, ...] = ()
    #: None if the losses of the world sizes need not agree.
    loss_agreement: LossAgreement | None = None
    #: The attempts of a restarted job, in order.
    attempts: tuple[Attempt, ...] = ()
    #: World sizes with hangs, mismatched collectives, or lasting changes of speed.
    incidents: tuple[Incidents, ...] = ()
    #: True if the recorded steps contain a trial, which switches between settings.
    in_turns: bool = False
    #: World sizes in which collectives were recorded, but no step.
    stepless: tuple[SteplessCollectives, ...] = ()
    #: World sizes with operations that NCCL's profiler plugin recorded.
    nccl: tuple[NcclWorld, ...] = ()


def scale(worlds: Sequence[WorldResult]) -> tuple[Scaling, ...]:
    """Computes speed-up and efficiency relative to the smallest world size."""
    if len(worlds) < 2:
        return tuple(Scaling(world.world_size, math.nan, math.nan) for world in worlds)
    base = min(worlds, key=lambda world: world.world_size)
    return tuple(
        Scaling(
            world_size=world.world_size,
            speedup=world.training.samples_per_s / base.training.samples_per_s,
            efficiency=(world.training.samples_per_s / world.world_size)
            / (base.training.samples_per_s / base.world_size),
        )
        for world in worlds
    )


def pool_overhead(worlds: Sequence[WorldResult]) -> Overhead | None:
    """Computes commprof's overhead from the steps of all world sizes.

    None if there are too few steps, see :func:`commprof.analysis.step.overhead.overhead`.
    """
    return pooled_overhead([world.profiler_cost.overhead_samples for world in worlds])
