from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from commprof.workloads.options import TrainingOptions
from commprof.workloads.spec import Shard, Trainee
from commprof.workloads.strategies.ddp import Ddp
from commprof.workloads.training import Training


class Alone(Ddp):
    def __init__(self, options: Any = None) -> None:
        super().__init__()
        self.synchronisations: list[bool] = []

    def wrap(self, trainee: Trainee, options: TrainingOptions, shard: Shard) -> nn.Module:
        return trainee.model

    def synchronised(self, model: Any, last: bool) -> AbstractContextManager[object]:
        self.synchronisations.append(last)
        return nullcontext()


def alone(trainee: Trainee, shard: Shard, lr_scale: float = 1.0, **options: Any) -> Training:
    return Training(trainee, Alone(), TrainingOptions(**options), shard, lr_scale)
