"""Workload `mlp`: fully connected layers that classify random vectors.

The labels come from a random linear map.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils.data import TensorDataset

from commprof.workloads.spec import OptimizerPlan, Shard, Trainee, cosine
from commprof.workloads.trainees import DataTrainee, OfSamples


@dataclass(frozen=True)
class MlpOptions:
    """Sizes of the model and of its data."""

    inputs: int = field(default=256, metadata={"minimum": 1})
    """Number of input features per sample."""
    width: int = field(default=512, metadata={"minimum": 1})
    """Number of units in each hidden layer."""
    layers: int = field(default=4, metadata={"minimum": 1})
    """Number of hidden layers."""
    classes: int = field(default=10, metadata={"minimum": 2})
    """Number of classes to distinguish."""
    samples: int = field(default=2048, metadata={"minimum": 1})
    """Number of samples in the data set, over all ranks."""
    learning_rate: float = 0.05
    """Learning rate of SGD with momentum 0.9; it falls to 0 along a cosine over the run."""


def _model(options: MlpOptions) -> nn.Sequential:
    widths = [options.inputs] + [options.width] * options.layers
    hidden = [
        nn.Sequential(nn.Linear(before, after), nn.ReLU()) for before, after in pairwise(widths)
    ]
    return nn.Sequential(*hidden, nn.Linear(widths[-1], options.classes))


class Mlp(OfSamples):
    """Workload that trains a fully connected network."""

    name: ClassVar[str] = "mlp"
    options_type: ClassVar[type[Any]] = MlpOptions
    build_imports: ClassVar[tuple[str, ...]] = ()
    default_batch_size: ClassVar[int] = 64
    split_dependence: ClassVar[str] = ""

    def __init__(self, options: MlpOptions | None = None) -> None:
        self.options = options or MlpOptions()

    @property
    def parameter_count(self) -> int:
        """Number of weights and biases of all layers."""
        widths = [self.options.inputs] + [self.options.width] * self.options.layers
        widths.append(self.options.classes)
        return sum((a + 1) * b for a, b in pairwise(widths))

    def describe(self) -> str:
        """Describes sizes and parameter count."""
        chosen = self.options
        return (
            f"mlp: {self.parameter_count:,} parameters ({chosen.inputs} inputs, {chosen.layers} "
            f"hidden layers of {chosen.width}, {chosen.classes} classes), {chosen.samples} "
            "samples of random numbers."
        )

    def refused(self) -> Mapping[str, str]:
        """Returns an empty dictionary: no strategy or option is refused."""
        return {}

    def build(self, shard: Shard) -> Trainee:
        """Builds one rank's model and data; weights and data set are the same on all ranks."""
        return _MlpTrainee(self.options, shard)


class _MlpTrainee(DataTrainee):
    def __init__(self, options: MlpOptions, shard: Shard) -> None:
        generator = torch.Generator().manual_seed(shard.seed)
        inputs = torch.randn(options.samples, options.inputs, generator=generator)
        teacher = torch.randn(options.inputs, options.classes, generator=generator)
        labels = (inputs @ teacher).argmax(dim=1)
        super().__init__(TensorDataset(inputs, labels), shard)
        torch.manual_seed(shard.seed)
        with torch.device(shard.device):
            model = _model(options)
        self.model: nn.Module = model
        self.blocks: Sequence[nn.Module] = list(model)[:-1]
        self._learning_rate = options.learning_rate

    def updates(self) -> OptimizerPlan:
        options = {"lr": self._learning_rate, "momentum": 0.9}
        return OptimizerPlan(torch.optim.SGD, options, cosine)
