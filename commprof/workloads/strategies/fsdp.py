"""Strategy `fsdp`: parameters, gradients and optimizer state are sharded among all ranks (FSDP2).

A unit is one block of the model, or several neighbouring blocks. While one unit computes, the
parameters of the next unit are gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from commprof.workloads.options import TrainingOptions
from commprof.workloads.spec import OptimizerPlan, Shard, Trainee
from commprof.workloads.strategies import theory
from commprof.workloads.strategies.ddp import AUTOCAST_DTYPES


@dataclass(frozen=True)
class FsdpOptions:
    """Options of FSDP2."""

    wrap_blocks: int = field(default=1, metadata={"minimum": 1})
    """Number of neighbouring blocks in a unit. The last unit may have fewer."""


class Fsdp:
    """Strategy that applies torch.distributed.fsdp.fully_shard to each unit, then to the model."""

    name: ClassVar[str] = "fsdp"
    options_type: ClassVar[type[Any]] = FsdpOptions
    replicated: ClassVar[bool] = False
    offloads: ClassVar[bool] = True

    def __init__(self, options: Any = None) -> None:
        self.options = options or self.options_type()

    def check(self, world_size: int) -> None:
        """Accepts any number of ranks."""

    def shard_size(self, world_size: int, local_ranks: int | None = None) -> int:
        """Returns the number of ranks among which each parameter is sharded.

        local_ranks: number of ranks per host. None: the launcher's LOCAL_WORLD_SIZE.
        """
        return world_size

    def wrap(self, trainee: Trainee, options: TrainingOptions, shard: Shard) -> nn.Module:
        """Shards the model in place; every rank must have created it with the same weights."""
        mesh = self._mesh(torch.device(shard.device).type, shard.world_size)
        low = AUTOCAST_DTYPES.get(options.precision)
        offload = CPUOffloadPolicy() if options.cpu_offload else OffloadPolicy()
        units = self.units(trainee)
        for unit in units:
            fully_shard(unit, mesh=mesh, mp_policy=_precision(low), offload_policy=offload)
        model = fully_shard(
            trainee.model,
            mesh=mesh,
            # The loss is computed in fp32, outside of the model.
            mp_policy=_precision(low, output_dtype=torch.float32),
            offload_policy=offload,
        )
        _prefetch(model, units, shard.device)
        return model

    def units(self, trainee: Trainee) -> list[list[nn.Module]]:
        """Returns the units in forward order, each as the list of its blocks."""
        blocks, together = list(trainee.blocks), self.options.wrap_blocks
        return [blocks[first : first + together] for first in range(0, len(blocks), together)]

    def optimizer(self, plan: OptimizerPlan, model: nn.Module) -> Optimizer:
        """Returns an optimizer for this rank's parts of the trained parameters."""
        return plan.kind(theory.trained(model), **plan.options)

    def synchronised(self, model: Any, last: bool) -> AbstractContextManager[object]:
        """Keeps gradients unsharded until the last pass, which reduce-scatters their sum.

        FSDP2's `set_is_last_backward(False)` is not called. It is meant for several forward passes
        before the backward passes. Here it would make a pass gather a block without need.
        """
        model.set_requires_gradient_sync(last)
        return nullcontext()

    def autocast(self, options: TrainingOptions, device: str) -> AbstractContextManager[object]:
        """Returns an empty context: blocks compute in the type of the gathered parameters."""
        return nullcontext()

    def clip(self, model: nn.Module, largest_norm: float) -> None:
        """Clips gradients by their norm over all ranks' parts, which needs one small all-reduce."""
        parameters = theory.trained(model)
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        nn.utils.clip_grads_with_norm_(parameters, largest_norm, norm)

    def expected(
        self, trainee: Trainee, options: TrainingOptions, world_size: int
    ) -> tuple[theory.Expected, ...]:
        """Returns a step's expected all-gathers and reduce-scatters, and HSDP's all-reduces."""
        units = self.units(trainee)
        groups = [[p for block in unit for p in block.parameters()] for unit in units]
        inside = {id(parameter) for group in groups for parameter in group}
        groups.append([p for p in trainee.model.parameters() if id(p) not in inside])
        ranks = self.shard_size(world_size)
        gather_bytes = None if options.precision == "fp32" else 2
        return theory.sharded(groups, ranks, world_size // ranks, options.accumulate, gather_bytes)

    def _mesh(self, device_type: str, world_size: int) -> DeviceMesh:
        return init_device_mesh(device_type, (world_size,))


def _precision(
    low: torch.dtype | None, output_dtype: torch.dtype | None = None
) -> MixedPrecisionPolicy:
    """Returns a policy that gathers and computes in `low` and reduces in fp32.

    If `low` is None, the policy changes no type.
    """
    if low is None:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(
        param_dtype=low, reduce_dtype=torch.float32, output_dtype=output_dtype
    )


def _prefetch(model: Any, units: Sequence[Sequence[Any]], device: str) -> None:
    """Makes FSDP2 on a CPU gather the next unit while the training thread computes.

    On a GPU, torch's streams already overlap gathering and compute.
    """
    if torch.device(device).type != "cpu":
        return
    model._set_unshard_async_op(True)
    for unit, following in pairwise(units):
        unit[0].set_modules_to_forward_prefetch([following[0]])
