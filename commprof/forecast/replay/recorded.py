"""Reads the recorded steps of a run directory for a prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from commprof import invocation
from commprof.analysis.collectives.compression import CompressionRow, compression_rows
from commprof.analysis.step.windows import sampled
from commprof.errors import CommprofError
from commprof.forecast.costs.regression import Line, robust_line
from commprof.forecast.scenario.schedule import (
    RecordedSteps,
    Schedule,
    measured_steps,
    read_schedule,
)
from commprof.forecast.sharded.steps import ShardedSteps, is_sharded, read_sharded
from commprof.trace import columns
from commprof.trace.run.run_directory import WorldRun, read_context, read_world

#: If ranks use more than this share of the cores' time, they may need more cores.
_FILLED = 0.85


@dataclass(frozen=True)
class RecordedJob:
    """One recorded world size that can be replayed."""

    name: str
    schedule: RecordedSteps
    #: Figures of the job's compressed buckets; empty without a compressor.
    compression: tuple[CompressionRow, ...]
    #: The run directory; empty if there is none.
    source: str = ""
    #: Names the steps that were sampled from a long run; empty if all steps were read.
    sampled_steps: str = ""


def read_recorded(directory: Path) -> tuple[list[RecordedJob], list[str]]:
    """Reads all world sizes that can be replayed.

    Also returns the reasons why other world sizes cannot be replayed.

    Raises:
        CommprofError: ``directory`` is not a run directory.
    """
    jobs, refused = [], []
    for world_size in read_context(directory)["world_sizes"]:
        run = read_world(directory, world_size)
        if run.traces and not any(len(columns.steps(trace)) for trace in run.traces.values()):
            refused.append(f"{run.directory} ({world_size} ranks): no rank recorded a step")
            continue
        run, sampled_steps = _of_sample(run)
        name = f"{directory}, {world_size} ranks{sampled_steps and f' ({sampled_steps})'}"
        try:
            schedule = _read_steps(run)
        except CommprofError as error:
            refused.append(str(error))
            continue
        traces = [run.traces[rank] for rank in sorted(run.traces)]
        rows = compression_rows(traces, measured_steps(traces), world_size)
        jobs.append(RecordedJob(name, schedule, rows, str(directory), sampled_steps))
    return with_free_share(jobs), refused


def _of_sample(run: WorldRun) -> tuple[WorldRun, str]:
    traces, stretches = sampled([run.traces[rank] for rank in sorted(run.traces)])
    if not stretches:
        return run, ""
    steps = ", ".join(f"{first}-{last}" for first, last in stretches)
    cut = replace(run, traces=dict(zip(sorted(run.traces), traces, strict=True)))
    return cut, f"a sample of a long run: steps {steps}"


def _read_steps(run: WorldRun) -> RecordedSteps:
    """Reads sharded steps if parameters or optimizer state are sharded; else DDP's steps.

    Raises:
        CommprofError: the steps are of neither kind.
    """
    if not any(is_sharded(trace) for trace in run.traces.values()):
        return read_schedule(run)
    return read_sharded(run)


def with_free_share(recorded: Sequence[RecordedJob]) -> list[RecordedJob]:
    """Corrects the CPU use of ranks that share cores.

    Such ranks get less CPU time than they need. Their CPU use is replaced by the CPU use of the
    world size with the fewest threads per core, or by NaN if that world size may lack CPU time too.
    Sharded steps with recorded run delays are not changed, because their CPU use includes the time
    of waiting for a core.
    """
    measured = [job for job in recorded if not math.isnan(job.schedule.placement.busy)]
    if not measured:
        return list(recorded)
    free = min(measured, key=lambda job: job.schedule.placement.threads_per_core).schedule.placement
    filled = free.threads_per_core > 1 and free.busy * free.threads_per_core > _FILLED
    share = math.nan if filled else free.busy
    return [_with_share(job, share) if _got_less(job.schedule) else job for job in recorded]


def _got_less(steps: RecordedSteps) -> bool:
    """True if the steps' CPU use may be less than with a core for each thread."""
    is_wanted = isinstance(steps, ShardedSteps) and not math.isnan(steps.lacked)
    return steps.placement.threads_per_core > 1 and not is_wanted


def _with_share(recorded: RecordedJob, busy: float) -> RecordedJob:
    placement = replace(recorded.schedule.placement, busy=busy)
    return replace(recorded, schedule=replace(recorded.schedule, placement=placement))


def base_of(
    recorded: Sequence[RecordedJob], world_size: int | None = None, refused: Sequence[str] = ()
) -> RecordedJob:
    """Chooses the world size to replay.

    If ``world_size`` is None, world sizes of 2 ranks or more are considered. The largest one that
    does not lack cores is chosen. If all of them lack cores, the smallest one is chosen.

    Raises:
        CommprofError: no suitable world size can be replayed. The message contains ``refused``, the
            reasons why recorded world sizes were left out.
    """
    usable = [job for job in recorded if job.schedule.world_size > 1]
    if world_size is not None:
        usable = [job for job in recorded if job.schedule.world_size == world_size]
    if not usable:
        sizes = ", ".join(str(job.schedule.world_size) for job in recorded) or "none"
        wanted = "2 ranks or more" if world_size is None else f"{world_size} ranks"
        raise CommprofError(
            f"no step of {wanted} can be replayed (others that can: {sizes}); record one with "
            + invocation.command("run", "--world-sizes", str(world_size or 2))
            + "".join(f"\n  left out: {reason}" for reason in refused)
        )
    free = [job for job in usable if job.schedule.placement.crowding() == 1.0]
    return max(
        free or usable,
        key=lambda job: job.schedule.world_size if free else -job.schedule.world_size,
    )


def compute_by_batch(recorded: Sequence[RecordedJob], base: RecordedSteps) -> Line | None:
    """Fits a rank's own work per step (s) as a straight line over its samples per step.

    Uses only world sizes whose load on the cores (``Placement.crowding``) equals that of ``base``.
    Returns None if these world sizes have fewer than two known batch sizes per rank.
    """
    alike = _alike(recorded, base)
    batch = np.array([schedule.batch.per_rank for schedule in alike])
    if len(np.unique(batch)) < 2:
        return None
    own_s = np.array([float(np.median(s.backward_end_s - s.other_wait_s)) for s in alike])
    return robust_line(batch, own_s)


def batches(recorded: Sequence[RecordedJob], base: RecordedSteps) -> tuple[float, float]:
    """Returns the smallest and largest samples per rank in the fit of ``compute_by_batch``.

    Returns 0 and infinity if no batch size is known.
    """
    sizes = [schedule.batch.per_rank for schedule in _alike(recorded, base)]
    return (min(sizes), max(sizes)) if sizes else (0.0, math.inf)


def _alike(recorded: Sequence[RecordedJob], base: RecordedSteps) -> list[Schedule]:
    return [
        job.schedule
        for job in recorded
        if isinstance(job.schedule, Schedule)
        and job.schedule.placement.crowding() == base.placement.crowding()
        and job.schedule.batch.per_rank
    ]
