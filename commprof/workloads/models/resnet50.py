"""Workload `resnet50`: the residual network of He et al. 2016 (arXiv 1512.03385) with SGD.

In this form of the network ("v1.5"), the stride of a block is in the 3 x 3 convolution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from commprof.errors import UsageError
from commprof.workloads.counting import count_parameters
from commprof.workloads.models.images import SYNTHETIC, Images, open_images
from commprof.workloads.spec import OptimizerPlan, Shard, Trainee, step_decay
from commprof.workloads.trainees import DataTrainee, passes_per_epoch

_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, number of blocks, stride
_EXPANSION = 4
_SHRINKS = 32  # largest image size that becomes 1 x 1 in the last stage


@dataclass(frozen=True)
class ResnetOptions:
    """Options of the data. Only the model's last layer depends on these options."""

    classes: int = field(default=10, metadata={"minimum": 2})
    """Number of classes; 1000 classes give the usual 25,557,032 parameters."""
    image: int = field(default=32, metadata={"minimum": 1})
    """Height and width to which images are resized."""
    samples: int = field(default=320, metadata={"minimum": 1})
    """Number of synthetic images, over all ranks."""
    data: str = SYNTHETIC
    """Images: synthetic, digits (of scikit-learn), an .npz file, or a folder per class."""
    learning_rate: float = 0.0125
    """Learning rate of SGD: 0.1 for a batch of 128, scaled to the default batch of 16. It falls to
    a tenth after half of the steps, and to a hundredth after three quarters."""


class _BatchNorm(nn.BatchNorm2d):
    """Batch norm with weights and statistics in fp32, as under torch.autocast.

    With bf16 or fp16, FSDP gathers the weights in 16 bits and leaves the running statistics in
    fp32. Torch's batch norm refuses this mixture.
    """

    def forward(self, features: Tensor) -> Tensor:
        if self.training:
            self.num_batches_tracked.add_(1)
        statistics = self.running_mean, self.running_var
        scale, shift = self.weight.float(), self.bias.float()
        return functional.batch_norm(
            features, *statistics, scale, shift, self.training, self.momentum, self.eps
        )


class _Block(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * _EXPANSION
        self.body = nn.Sequential(
            *_convolution(inputs, width, 1),
            nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_convolution(width, outputs, 1),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = (
            nn.Identity() if same else nn.Sequential(*_convolution(inputs, outputs, 1, stride))
        )
        self.activation = nn.ReLU(inplace=True)

    def forward(self, features: Tensor) -> Tensor:
        result: Tensor = self.activation(self.body(features) + self.shortcut(features))
        return result


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution, _BatchNorm(outputs)


class _Model(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        width = _STAGES[0][0]
        self.stem = nn.Sequential(
            *_convolution(3, width, 7, stride=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks = []
        for stage_width, count, stride in _STAGES:
            for index in range(count):
                blocks.append(_Block(width, stage_width, stride if index == 0 else 1))
                width = stage_width * _EXPANSION
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.head(self.pool(self.blocks(self.stem(images))).flatten(1))
        return result


class Resnet50:
    """Workload that trains the residual network on images."""

    name: ClassVar[str] = "resnet50"
    options_type: ClassVar[type[Any]] = ResnetOptions
    build_imports: ClassVar[tuple[str, ...]] = ()
    default_batch_size: ClassVar[int] = 16
    split_dependence: ClassVar[str] = (
        "batch norm normalises each rank's part of the batch separately"
    )

    def __init__(self, options: ResnetOptions | None = None) -> None:
        """Raises UsageError if the images cannot be read."""
        self.options = options or ResnetOptions()
        chosen = self.options
        self._images: Images = open_images(
            chosen.data, chosen.samples, chosen.classes, chosen.image
        )

    @property
    def parameter_count(self) -> int:
        """Exact number of trainable parameters, counted without allocating them."""
        return count_parameters(lambda: _Model(self.options.classes))

    def describe(self) -> str:
        """Describes parameters and data. Raises UsageError if a package is missing."""
        self._images.require()
        chosen = self.options
        return (
            f"resnet50: {self.parameter_count:,} parameters ({chosen.classes} classes), "
            f"{self._images.description}, as {chosen.image} x {chosen.image}."
        )

    def refused(self) -> Mapping[str, str]:
        """Returns an empty dictionary: no strategy or option is refused."""
        return {}

    def steps_per_epoch(self, world_size: int, per_rank_batch: int) -> int:
        """Returns a rank's number of steps per epoch, at one backward pass per step.

        Raises UsageError if a pass would have only one image, and batch norm needs more.
        """
        self._check_batches(world_size, per_rank_batch)
        return passes_per_epoch(self._images.count, world_size, per_rank_batch)

    def _check_batches(self, world_size: int, per_rank_batch: int) -> None:
        """Raises UsageError if batch norm would get only one value per channel in some batch."""
        if self.options.image > _SHRINKS:
            return
        here = -(-self._images.count // world_size)
        last = here % per_rank_batch or min(here, per_rank_batch)
        if last > 1:
            return
        fitting = (n for n in range(max(2, per_rank_batch), here + 2) if here % n != 1)
        batch = next(fitting, 2)
        which = "each pass" if per_rank_batch == 1 else "the last pass of an epoch"
        advice = f"a batch of {batch} per rank, or " if here > 1 else "fewer ranks, or "
        raise UsageError(
            f"resnet50: {which} would have one image of {self.options.image} x "
            f"{self.options.image} ({here} images per rank, {per_rank_batch} per pass); the last "
            "stage shrinks an image to one value per channel, but batch norm needs at least two "
            f"values; use {advice}image={_SHRINKS + 1}"
        )

    def build(self, shard: Shard) -> Trainee:
        """Builds one rank's model and data; weights and data set are the same on all ranks."""
        return _ResnetTrainee(self.options, self._images, shard)


class _ResnetTrainee(DataTrainee):
    def __init__(self, options: ResnetOptions, images: Images, shard: Shard) -> None:
        super().__init__(TensorDataset(*images.load(options.image, shard.seed)), shard)
        torch.manual_seed(shard.seed)
        with torch.device(shard.device):
            model = _Model(options.classes)
        self.model: nn.Module = model
        self.blocks: Sequence[nn.Module] = list(model.blocks)
        self._learning_rate = options.learning_rate

    def updates(self) -> OptimizerPlan:
        options = {"lr": self._learning_rate, "momentum": 0.9, "weight_decay": 5e-4}
        return OptimizerPlan(torch.optim.SGD, options, step_decay)
