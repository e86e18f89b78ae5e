"""Training of a workload with a strategy and with the options that all workloads share."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from commprof.workloads.options import TrainingOptions
from commprof.workloads.spec import LearningRate, OptimizerPlan, Shard, Trainee
from commprof.workloads.strategies import Strategy


class Training:
    """Interface between `loop.train` and a strategy; `model` is the wrapped model."""

    def __init__(
        self,
        trainee: Trainee,
        strategy: Strategy,
        options: TrainingOptions,
        shard: Shard,
        lr_scale: float = 1.0,
    ) -> None:
        """Wraps the model; needs a process group.

        lr_scale: factor of the learning rate, used only if `options.scale_lr` is set.
        """
        self._trainee = trainee
        self._strategy = strategy
        self._options = options
        self._device = shard.device
        self.expected = strategy.expected(trainee, options, shard.world_size)
        if options.checkpoint_activations:
            _recompute(trainee)
        self.model = strategy.wrap(trainee, options, shard)
        self._scaler = _scaler(options, shard.device)
        updates = trainee.updates()
        if isinstance(updates, OptimizerPlan):
            optimizer = strategy.optimizer(updates, self.model)
            rate = LearningRate(
                updates.options["lr"],
                updates.schedule,
                shard.steps,
                lr_scale if options.scale_lr else 1.0,
                options.lr_warmup,
            )
            updates = functools.partial(self._optimize, optimizer, rate)
        self._update: Callable[[], None] = updates
        self._step = 0

    def batches(self, epoch: int) -> Iterator[tuple[Any, ...]]:
        """Yields the batches of each update. The last update of an epoch may have fewer batches."""
        batches = self._trainee.batches(epoch)
        while group := tuple(itertools.islice(batches, self._options.accumulate)):
            yield group

    def synchronised(self, last: bool) -> AbstractContextManager[object]:
        """Returns the context of a pass. Only the last pass of an update exchanges gradients."""
        return self._strategy.synchronised(self.model, last)

    def forward(self, batch: Any) -> Tensor:
        """Computes the mean loss of a batch in the chosen precision."""
        with self._strategy.autocast(self._options, self._device):
            return self._trainee.forward(self.model, batch)

    def backward(self, loss: Tensor, weight: float) -> None:
        """Computes the gradients of `weight` times the loss. With fp16, scales the loss."""
        if weight != 1:
            loss = loss * weight
        if self._scaler is not None:
            loss = self._scaler.scale(loss)
        self._trainee.backward(loss)

    def update(self) -> None:
        """Runs the optimizer phase."""
        self._update()

    def _optimize(self, optimizer: Optimizer, rate: LearningRate) -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate.at(self._step)
        self._step += 1
        if self._scaler is not None:
            self._scaler.unscale_(optimizer)
        if self._options.clip_norm:
            self._strategy.clip(self.model, self._options.clip_norm)
        if self._scaler is None:
            optimizer.step()
        else:
            self._scaler.step(optimizer)
            self._scaler.update()
        optimizer.zero_grad()


def _scaler(options: TrainingOptions, device: str) -> Any:
    if options.precision != "fp16":
        return None
    return torch.amp.GradScaler(torch.device(device).type)


def _recompute(trainee: Trainee) -> None:
    """Adds activation checkpointing to each block (Chen et al. 2016, arXiv 1604.06174).

    Replaces each block's `forward`, because a wrapper module would rename the parameters. FSDP's
    gathering happens outside of the replaced, recomputed `forward`.
    """
    for block in trainee.blocks:
        # setattr, because mypy refuses assignments to a method
        setattr(block, "forward", _checkpointed(block))  # noqa: B010


def _checkpointed(block: nn.Module) -> Callable[..., Any]:
    forward = block.forward

    @functools.wraps(forward)
    def recomputed(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return recomputed
