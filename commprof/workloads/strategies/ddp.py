"""Strategy `ddp`: every rank holds the whole model; gradients are all-reduced in buckets."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from commprof.workloads.options import TrainingOptions
from commprof.workloads.spec import OptimizerPlan, Shard, Trainee
from commprof.workloads.strategies import theory

AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class DdpOptions:
    """Options of DDP: none, because the workload supplies DDP's arguments."""


class Ddp:
    """Strategy of torch.nn.parallel.DistributedDataParallel."""

    name: ClassVar[str] = "ddp"
    options_type: ClassVar[type[Any]] = DdpOptions
    replicated: ClassVar[bool] = True
    offloads: ClassVar[bool] = False

    def __init__(self, options: DdpOptions | None = None) -> None:
        self.options = options or DdpOptions()

    def check(self, world_size: int) -> None:
        """Accepts any number of ranks."""

    def wrap(self, trainee: Trainee, options: TrainingOptions, shard: Shard) -> nn.Module:
        """Wraps the model in DDP, with the workload's arguments."""
        model: nn.Module = DistributedDataParallel(trainee.model, **trainee.ddp_options())
        return model

    def optimizer(self, plan: OptimizerPlan, model: nn.Module) -> Optimizer:
        """Returns an optimizer for all trained parameters, on every rank."""
        return plan.kind(theory.trained(model), **plan.options)

    def synchronised(self, model: Any, last: bool) -> AbstractContextManager[object]:
        """Returns DDP's `no_sync` context for every pass except the last."""
        context: AbstractContextManager[object] = nullcontext() if last else model.no_sync()
        return context

    def autocast(self, options: TrainingOptions, device: str) -> AbstractContextManager[object]:
        """Returns torch.autocast. Parameters and gradients keep their own type."""
        if options.precision == "fp32":
            return nullcontext()
        kind = torch.device(device).type
        context: AbstractContextManager[object] = torch.autocast(
            kind, AUTOCAST_DTYPES[options.precision]
        )
        return context

    def clip(self, model: nn.Module, largest_norm: float) -> None:
        """Clips gradients on each rank alone, because all ranks hold the same gradients."""
        nn.utils.clip_grad_norm_(theory.trained(model), largest_norm)

    def expected(
        self, trainee: Trainee, options: TrainingOptions, world_size: int
    ) -> tuple[theory.Expected, ...]:
        """Returns a step's expected all-reduces (of gradients) and broadcasts (of buffers)."""
        rows = [theory.all_reduced_gradients(trainee.model)]
        return theory.together(
            [*rows, *theory.broadcast_buffers(trainee.model, trainee.ddp_options())]
        )
