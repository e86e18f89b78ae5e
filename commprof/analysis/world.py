"""Computes the results of a run at one world size, that is, one number of ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from commprof.analysis.checks.cross_checks import cross_checks, theory_checks
from commprof.analysis.checks.figure_checks import CrossCheck
from commprof.analysis.collectives.communication import Communication, communication
from commprof.analysis.collectives.devices import kernel_times
from commprof.analysis.evidence import Evidence, Figure, evidence_of
from commprof.analysis.late.lateness import Lateness, lateness
from commprof.analysis.named_cause import NamedCause
from commprof.analysis.profiler_cost import ProfilerCost, profiler_cost
from commprof.analysis.rank_summary import (
    RankSummary,
    StepParts,
    mean_parts,
    rank_summary,
    step_parts,
)
from commprof.analysis.recording import WorldRecording, world_recording
from commprof.analysis.replay.gains import Gains, gains
from commprof.analysis.step.measured import MeasuredWorld, observed_ranks, samples_read
from commprof.analysis.step.timing import StepTiming, step_timing
from commprof.analysis.training_account import TrainingAccount, training_account
from commprof.memory import return_free_memory
from commprof.trace.run.run_directory import WorldRun


@dataclass(frozen=True)
class WorldResult:
    """Figures of all ranks of one world size over the measured steps."""

    world_size: int
    ranks: tuple[RankSummary, ...]
    #: Mean over ranks and steps.
    parts: StepParts
    #: Largest own work of a rank, divided by the mean own work over the ranks, minus 1. Own work is
    #: the step minus exposed time.
    imbalance: float
    timing: StepTiming
    training: TrainingAccount
    recording: WorldRecording
    #: Says which figures the recordings support. All other figures are NaN, None or empty.
    evidence: Evidence
    profiler_cost: ProfilerCost
    communication: Communication
    lateness: Lateness
    #: Comparisons of the figures with other measurements of the same run.
    cross_checks: tuple[CrossCheck, ...] = ()
    #: Gains of possible changes, computed by replay; None if the steps cannot be replayed.
    gains: Gains | None = None
    #: Causes from ``docs/causes.md`` that the recordings show. Causes that make the result of
    #: training wrong come first, then the causes whose fix saves most.
    named_causes: tuple[NamedCause, ...] = ()

    def known(self, name: str) -> list[float]:
        """Returns the values of the field ``name`` over all ranks, without NaN."""
        values = [getattr(rank, name) for rank in self.ranks]
        return [value for value in values if not math.isnan(value)]

    @property
    def unlisted_exposed_ms(self) -> float:
        """Exposed time per step that is in no row of ``communication.collectives``.

        For example, the training thread waited for a collective that was not recorded.
        """
        rows = self.communication.collectives
        return self.parts.exposed_ms - sum(row.times.exposed_ms for row in rows)


def world_result(
    run: WorldRun,
    seen: MeasuredWorld,
    steps_only: bool = False,
    evidence: Evidence | None = None,
) -> WorldResult:
    """Computes the figures of one world size.

    The built-in training loop writes the file ``rank_N.json`` on each rank. Without these files,
    losses and commprof's own cost are NaN, and samples are counted from the DataLoaders' batches.

    Args:
        run: the files of the world size.
        seen: the measured steps of all ranks.
        steps_only: True to leave out collectives, lateness, cross-checks and gains.
        evidence: the evidence of the world size; None to compute it.
    """
    whole = seen.all_steps
    ranks = _rank_summaries(run, seen)
    timing, recording = step_timing(whole), world_recording(run, seen)
    evidence = evidence or evidence_of(seen)
    result = WorldResult(
        world_size=run.world_size,
        ranks=ranks,
        parts=mean_parts([rank.parts for rank in ranks]),
        imbalance=_imbalance(ranks),
        timing=timing,
        training=training_account(run, ranks, whole.measured.step),
        recording=recording,
        evidence=evidence,
        profiler_cost=profiler_cost(run, whole),
        communication=Communication(call_steps=len(seen.measured.step)),
        lateness=Lateness(),
    )
    if steps_only:
        return _supported(result)
    result = _supported(_with_calls(result, run, seen))
    return replace(result, lateness=result.lateness.inside_phases(run, seen))


def _with_calls(result: WorldResult, run: WorldRun, seen: MeasuredWorld) -> WorldResult:
    """Adds the figures that need single collective calls, such as gains."""
    recording, observed = result.recording, observed_ranks(seen)
    late = lateness(run, seen.all_steps, result.timing.step_median_ms, recording.between_ranks_us)
    exchanged = communication(run, seen)
    return_free_memory()
    return replace(
        result,
        evidence=replace(result.evidence, most_waited_for=late.most_waited_for),
        communication=exchanged,
        lateness=late,
        cross_checks=()
        if recording.foreign
        else (*cross_checks(run, observed, seen.whole is not None), *theory_checks(run, observed)),
        gains=gains(seen, result.evidence),
    )


def _rank_summaries(run: WorldRun, seen: MeasuredWorld) -> tuple[RankSummary, ...]:
    step = seen.measured.step
    kernels = kernel_times(seen.matching, seen.traces, seen.tables, step, seen.clocks_shared)
    whole = seen.all_steps
    steps = whole.measured.step
    samples = samples_read(whole.on_host, steps)
    columns = seen.ranks, whole.measured.sums("wall"), step_parts(whole.measured), samples, kernels
    return tuple(
        rank_summary(run, rank, steps, wall_ns, parts, read, of_rank)
        for rank, wall_ns, parts, read, of_rank in zip(*columns, strict=True)
    )


def _imbalance(ranks: tuple[RankSummary, ...]) -> float:
    work = np.array([rank.parts.own_work_ms for rank in ranks])
    return float(work.max() / work.mean() - 1) if work.mean() > 0 else 0.0


def _supported(result: WorldResult) -> WorldResult:
    evidence = result.evidence
    if not evidence.supports(Figure.EXPOSED):
        unknown = StepParts.unseen if evidence.supports(Figure.PARTS) else StepParts.unknown
        result = replace(
            result,
            ranks=tuple(replace(rank, parts=unknown(rank.parts)) for rank in result.ranks),
            parts=unknown(result.parts),
            imbalance=math.nan,
        )
    return replace(
        result,
        communication=result.communication.supported(evidence),
        lateness=result.lateness.supported(evidence),
    )
