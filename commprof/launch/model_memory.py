"""Memory of a rank's weights, gradients and optimizer state, from the model's shapes alone.

Activations, the data set, Python and torch need further memory, which is not estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from commprof.launch.job import Job
from commprof.text import counted
from commprof.workloads.spec import OptimizerPlan, Shard, Trainee
from commprof.workloads.strategies.fsdp import Fsdp
from commprof.workloads.strategies.theory import trained


@dataclass(frozen=True)
class ModelMemory:
    """Memory of one rank's model, in bytes."""

    weights: int
    """Parameters and buffers. With FSDP: the rank's shard of the parameters, the largest unit of
    blocks that is gathered, and the buffers."""
    gradients: int
    optimizer_state: int | None
    """None for an optimizer whose state size commprof does not know."""
    buckets: int
    """DDP's own copies of the gradients."""

    @property
    def total(self) -> int:
        """Sum of the known parts."""
        return self.weights + self.gradients + (self.optimizer_state or 0) + self.buckets

    @property
    def text(self) -> str:
        """Memory in a sentence, with its parts in MB."""
        named = {
            "weights": self.weights,
            "gradients": self.gradients,
            "optimizer state": self.optimizer_state,
            "DDP's buckets": self.buckets,
        }
        known_sizes = {name: size for name, size in named.items() if size}
        parts = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in known_sizes.items())
        unknown = "optimizer state, " if self.optimizer_state is None else ""
        return (
            f"Memory of a rank: at least {self.total / 1e6:.1f} MB ({parts}); {unknown}"
            "activations, data, Python and torch need more."
        )

    def shortage(self, local_ranks: int, available: int) -> str:
        """Describes the shortage of memory for ``local_ranks`` ranks; empty if there is none.

        ``available`` is the host's free memory in bytes.
        """
        needed = local_ranks * self.total
        if needed <= available:
            return ""
        ranks = f"{counted(local_ranks, 'rank')} {'needs' if local_ranks == 1 else 'need'}"
        return (
            f"This machine has too little memory: {ranks} at least {needed / 1e9:.3g} GB, and "
            f"{available / 1e9:.3g} GB are free; use a smaller model, fewer ranks or a larger "
            "machine."
        )


def model_memory(job: Job, local_ranks: int | None = None) -> ModelMemory:
    """Returns the memory of each rank of a job; creates the model on torch's meta device.

    Args:
        job: the job, of any world size.
        local_ranks: ranks per host; None: all ranks on one host.

    Raises:
        UsageError: the workload cannot be built on this machine.
    """
    plan = job.plan()
    shard = Shard(0, job.world_size, plan.per_rank_batch, plan.steps, job.seed, "meta")
    trainee = plan.workload.build(shard)
    model, parts, gathered = trainee.model, 1, 0
    if isinstance(plan.strategy, Fsdp):
        parts = plan.strategy.shard_size(job.world_size, local_ranks)
        units = plan.strategy.units(trainee) if parts > 1 else []
        # number of bytes per gathered element; None: the same as in the shards
        low = 2 if plan.options.precision != "fp32" else None
        sizes = [_bytes([p for block in unit for p in block.parameters()], low) for unit in units]
        gathered = max(sizes, default=0)
    gradients = _bytes(trained(model))
    parameters = _bytes(list(model.parameters()))
    owners = job.world_size if plan.strategy.name == "zero1" else parts
    moments = _moments(trainee)
    view = trainee.ddp_options().get("gradient_as_bucket_view", False)
    return ModelMemory(
        weights=parameters // parts + gathered + _bytes(list(model.buffers())),
        gradients=gradients // parts,
        optimizer_state=None if moments is None else moments * gradients // owners,
        buckets=gradients if plan.strategy.replicated and not view else 0,
    )


def _moments(trainee: Trainee) -> int | None:
    """Number of values that the optimizer keeps per trained scalar; None if unknown."""
    updates = trainee.updates()
    if not isinstance(updates, OptimizerPlan):
        return 0
    if issubclass(updates.kind, torch.optim.Adam | torch.optim.AdamW):
        return 2
    if issubclass(updates.kind, torch.optim.SGD):
        return 1 if updates.options.get("momentum") else 0
    return None


def _bytes(tensors: Sequence[Tensor], element_bytes: int | None = None) -> int:
    return sum(tensor.numel() * (element_bytes or tensor.element_size()) for tensor in tensors)
