"""Strategy `zero1`: DDP with optimizer state sharded among the ranks (ZeRO stage 1).

Each rank updates a part of the parameters and sends the part to all other ranks (Rajbhandari et
al. 2020, arXiv 1910.02054).
"""

from __future__ import annotations

from typing import ClassVar

from torch import nn
from torch.optim import Optimizer

from commprof.workloads.options import TrainingOptions
from commprof.workloads.spec import OptimizerPlan, Trainee
from commprof.workloads.strategies import theory
from commprof.workloads.strategies.ddp import Ddp


class Zero1(Ddp):
    """Strategy of torch.distributed.optim.ZeroRedundancyOptimizer under DDP."""

    name: ClassVar[str] = "zero1"

    def optimizer(self, plan: OptimizerPlan, model: nn.Module) -> Optimizer:
        """Returns an optimizer with the state of this rank's part of the parameters."""
        # Imported late: the import compiles TorchScript.
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer: Optimizer = ZeroRedundancyOptimizer(
            theory.trained(model), optimizer_class=plan.kind, **plan.options
        )
        return optimizer

    def expected(
        self, trainee: Trainee, options: TrainingOptions, world_size: int
    ) -> tuple[theory.Expected, ...]:
        """Returns DDP's expected collectives and the broadcasts of updated parameters."""
        rows = super().expected(trainee, options, world_size)
        return theory.together([*rows, theory.broadcast_parameters(trainee.model)])
