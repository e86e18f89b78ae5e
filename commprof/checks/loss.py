"""Checks that the loss of a small training run on all ranks falls."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from commprof.analysis.checks.losses import loss_trend
from commprof.analysis.checks.outcome import FAIL, PASS, Outcome
from commprof.checks.ranks import Ranks

NAME = "loss trend"
_STEPS = 30


def measure(ranks: Ranks) -> list[float]:
    """Trains a linear regression; returns each step's loss, averaged over all ranks."""
    torch.manual_seed(0)
    layers = nn.Linear(16, 1)
    model = DistributedDataParallel(layers) if ranks.world_size > 1 else layers
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    random = torch.Generator().manual_seed(ranks.rank)
    losses = []
    for _ in range(_STEPS):
        inputs = torch.randn(32, 16, generator=random)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / ranks.world_size)
    return losses


def judge(values: Sequence[list[float]]) -> Outcome:
    """Fails if the loss does not fall or is not finite."""
    trend = loss_trend(values[0])
    assert trend is not None
    advice = (
        "the check's small training run does not converge, although it must: compare torch's "
        "builds on these ranks, and see the result of the all-reduce check"
    )
    if trend.not_finite is not None:
        where = f"in step {trend.not_finite}"
        if trend.diverged_from is not None:
            where = f"from step {trend.diverged_from} on"
        return Outcome(NAME, FAIL, f"the loss is not a finite number {where}", advice)
    figure = f"{trend.first:.3g} to {trend.last:.3g} in {trend.steps} steps"
    if trend.falls:
        return Outcome(NAME, PASS, figure)
    return Outcome(NAME, FAIL, f"{figure}: the loss does not fall", advice)
