"""Reads a run directory's recorded steps for a prediction, one ``RecordedJob`` per world size."""

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

#: Ranks that use more than this share of the cores' time may want more time than the cores have.
_FILLED = 0.85


@dataclass(frozen=True)
class RecordedJob:
    """One recorded world size that can be replayed."""

    name: str
    schedule: RecordedSteps
    #: Figures of its compressed buckets; empty without a compressor.
    compression: tuple[CompressionRow, ...]
    #: The run directory; empty if there is none.
    source: str = ""
    #: If the job is a sample of a long run's steps: a clause that names the steps; else empty.
    sampled_steps: str = ""


def read_recorded(directory: Path) -> tuple[list[RecordedJob], list[str]]:
    """Reads all world sizes that can be replayed; also returns why others cannot be.

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
    """Cuts a long run to a sample of its steps; also returns a clause that names these steps."""
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
    """Replaces the CPU use of ranks that share cores by that of the least crowded world size.

    Ranks that share cores get less CPU time than they need, so their own CPU use shows how many
    cores there were, not how many the ranks need. Their CPU use is replaced by that of the world
    size with the fewest threads per core, or by NaN if the ranks of that world size also share
    cores and use more than ``_FILLED`` of the cores' time. A recording of sharded steps that
    contains run delays is not changed: its CPU use already includes the time that ranks waited for
    a core.
    """
    measured = [job for job in recorded if not math.isnan(job.schedule.placement.busy)]
    if not measured:
        return list(recorded)
    free = min(measured, key=lambda job: job.schedule.placement.threads_per_core).schedule.placement
    filled = free.threads_per_core > 1 and free.busy * free.threads_per_core > _FILLED
    share = math.nan if filled else free.busy
    return [_with_share(job, share) if _got_less(job.schedule) else job for job in recorded]


def _got_less(steps: RecordedSteps) -> bool:
    """True if the steps' CPU use may be less than it would be with a core for each thread."""
    is_wanted = isinstance(steps, ShardedSteps) and not math.isnan(steps.lacked)
    return steps.placement.threads_per_core > 1 and not is_wanted


def _with_share(recorded: RecordedJob, busy: float) -> RecordedJob:
    placement = replace(recorded.schedule.placement, busy=busy)
    return replace(recorded, schedule=replace(recorded.schedule, placement=placement))


def base_of(
    recorded: Sequence[RecordedJob], world_size: int | None = None, refused: Sequence[str] = ()
) -> RecordedJob:
    """Chooses the world size to replay: the given one, else the largest with cores for all ranks.

    If all world sizes of 2 ranks or more lack cores, the smallest of them is chosen.

    Raises:
        CommprofError: the given world size cannot be replayed, or, if none is given, no recorded
            world size of 2 ranks or more can be replayed. The message contains ``refused``: the
            reasons why recorded world sizes were left out.
    """
    usable = [job for job in recorded if job.schedule.world_size > 1]
    if world_size is not None:
        usable = [job for job in recorded if job.schedule.world_size == world_size]
    if not usable:
        sizes = ", ".join(str(job.schedule.world_size) for job in recorded) or "none"
        wanted = "2 ranks or more" if world_size is None else f"{world_size} ranks"
        raise CommprofError(
            f"no step of {wanted} can be replayed (recorded: {sizes}); record one with "
            + invocation.command("run", "--world-sizes", str(world_size or 2))
            + "".join(f"\n  left out: {reason}" for reason in refused)
        )
    free = [job for job in usable if job.schedule.placement.crowding() == 1.0]
    return max(
        free or usable,
        key=lambda job: job.schedule.world_size if free else -job.schedule.world_size,
    )


def compute_by_batch(recorded: Sequence[RecordedJob], base: RecordedSteps) -> Line | None:
    """Fits a line to a rank's own work per step, in s, as a function of its samples per step.

    Uses the world sizes whose load on the cores (``Placement.crowding``) equals that of ``base``.
    Returns None if all of these world sizes have the same batch size per rank.
    """
    alike = _alike(recorded, base)
    batch = np.array([schedule.batch.per_rank for schedule in alike])
    if len(np.unique(batch)) < 2:
        return None
    own_s = np.array([float(np.median(s.backward_end_s - s.other_wait_s)) for s in alike])
    return robust_line(batch, own_s)


def batches(recorded: Sequence[RecordedJob], base: RecordedSteps) -> tuple[float, float]:
    """Returns the smallest and largest number of samples per rank in ``compute_by_batch``'s fit.

    Returns 0 and infinity if no such number is known.
    """
    sizes = [schedule.batch.per_rank for schedule in _alike(recorded, base)]
    return (min(sizes), max(sizes)) if sizes else (0.0, math.inf)


def _alike(recorded: Sequence[RecordedJob], base: RecordedSteps) -> list[Schedule]:
    """Returns the schedules with a known batch size and the same load on the cores as ``base``."""
    return [
        job.schedule
        for job in recorded
        if isinstance(job.schedule, Schedule)
        and job.schedule.placement.crowding() == base.placement.crowding()
        and job.schedule.batch.per_rank
    ]
