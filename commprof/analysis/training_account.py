"""Samples, losses and weights of the training at one world size.

A rank's account is the file ``rank_N.json`` that the built-in training loop writes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from commprof.analysis.checks.losses import differing_weights, global_losses
from commprof.analysis.rank_summary import RankSummary, samples_trained
from commprof.field_groups import FieldGroup
from commprof.trace.columns import Ints
from commprof.trace.run.run_directory import WorldRun


@dataclass(frozen=True)
class TrainingAccount(FieldGroup):
    """Samples, losses and weights of one world size."""

    #: Number of samples of all ranks in the measured steps, divided by the slowest rank's time. NaN
    #: if the number of samples of a rank is unknown.
    samples_per_s: float
    #: Smallest and largest number of samples that all ranks together processed in a measured step.
    #: NaN unless every rank left an account.
    samples_per_step: tuple[float, float]
    #: Mean loss of the last epoch, averaged over the ranks.
    average_loss: float
    #: "loop" if the training loop counted the samples, "dataloader" if DataLoaders counted them,
    #: "" if they are unknown.
    samples_source: str = "loop"
    #: Mean loss of each training step over the samples of all ranks. Empty unless every rank left
    #: an account.
    step_losses: tuple[float, ...] = ()
    #: Number of samples of all ranks in each training step. Empty unless every rank left an
    #: account.
    step_samples: tuple[int, ...] = ()
    #: Ranks whose weights after training differ from the weights of most ranks. Empty if weights
    #: may differ between ranks.
    weights_differ: tuple[int, ...] = ()


def training_account(
    run: WorldRun, ranks: tuple[RankSummary, ...], measured_steps: Ints
) -> TrainingAccount:
    """Returns samples, losses and weights, from the ranks' traces and ``rank_N.json`` files."""
    duration_s = max(rank.duration_s for rank in ranks)
    trained = _samples(run, ranks, measured_steps)
    losses, samples = global_losses(run)
    return TrainingAccount(
        samples_per_s=trained / duration_s if duration_s > 0 else math.nan,
        samples_per_step=_samples_per_step(run, measured_steps.tolist()),
        average_loss=float(np.mean([rank.average_loss for rank in ranks])),
        samples_source="" if math.isnan(trained) else _samples_source(run, ranks),
        step_losses=losses,
        step_samples=samples,
        weights_differ=differing_weights(run),
    )


def _samples(run: WorldRun, ranks: tuple[RankSummary, ...], steps: Ints) -> float:
    """Returns the number of samples of all ranks in these steps; NaN if unknown.

    For a rank without a trace, the number comes from the rank's account.
    """
    recorded = {rank.rank: rank.samples for rank in ranks}
    others = [rank for rank in range(run.world_size) if rank not in recorded]
    if any(rank not in run.results for rank in others):
        return math.nan
    by_account = (samples_trained(run.results[rank], steps) for rank in others)
    return sum(recorded.values()) + sum(by_account)


def _samples_source(run: WorldRun, ranks: tuple[RankSummary, ...]) -> str:
    return "loop" if all(rank.rank in run.results for rank in ranks) else "dataloader"


def _samples_per_step(run: WorldRun, steps: list[int]) -> tuple[float, float]:
    if len(run.results) < run.world_size or not steps:
        return math.nan, math.nan
    totals = [
        sum(result["step_samples"][step] for result in run.results.values()) for step in steps
    ]
    return float(min(totals)), float(max(totals))
