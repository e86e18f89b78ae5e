"""Base classes of workloads with a data set, and of their trainees.

A trainee is a workload that was built for one rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from commprof.workloads.spec import Shard


def passes_per_epoch(samples: int, world_size: int, per_rank_batch: int) -> int:
    """Returns the number of backward passes of each rank per epoch."""
    return math.ceil(math.ceil(samples / world_size) / per_rank_batch)


class OfSamples:
    """Base class of workloads with an option `samples`, the size of the data set."""

    options: Any

    def steps_per_epoch(self, world_size: int, per_rank_batch: int) -> int:
        """Returns a rank's number of steps per epoch, if each step has one backward pass."""
        return passes_per_epoch(self.options.samples, world_size, per_rank_batch)


@dataclass(frozen=True)
class DataBatch:
    """Inputs of a batch, and the targets that the model should predict."""

    inputs: Tensor
    """Samples along the first dimension, of any shape."""
    targets: Tensor
    """For classifiers, the class of each sample: shape (samples). For language models, the next
    token at each position: shape (samples, sequence)."""

    @property
    def samples(self) -> int:
        """Number of samples in this batch."""
        return self.targets.shape[0]


class DataTrainee:
    """Base class of trainees with a data set. A subclass adds the model and the optimizer.

    Global batches of equal size hold the same samples at every world size.
    """

    def __init__(self, data: TensorDataset, shard: Shard) -> None:
        """Creates the sampler and the loader of this rank's part of `data`.

        `data` is the whole data set, and must be the same on all ranks.
        """
        self._sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(
            data, shard.world_size, shard.rank, shuffle=True, seed=shard.seed
        )
        self._loader = DataLoader(data, batch_size=shard.per_rank_batch, sampler=self._sampler)
        self._device = shard.device

    def ddp_options(self) -> dict[str, Any]:
        """Returns an empty dict, so that DDP uses its defaults."""
        return {}

    def batches(self, epoch: int) -> Iterator[DataBatch]:
        """Yields this rank's batches of one epoch, on its device."""
        self._sampler.set_epoch(epoch)
        for inputs, targets in self._loader:
            yield DataBatch(inputs.to(self._device), targets.to(self._device))

    def forward(self, model: nn.Module, batch: DataBatch) -> Tensor:
        """Computes the mean cross entropy of the model's logits, in fp32."""
        logits = self.logits(model, batch.inputs)
        return functional.cross_entropy(
            logits.float().reshape(-1, logits.shape[-1]), batch.targets.reshape(-1)
        )

    def logits(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """Computes logits of shape (samples, classes) or (samples, sequence, vocabulary)."""
        result: Tensor = model(inputs)
        return result

    def backward(self, loss: Tensor) -> None:
        """Computes the gradients by autograd."""
        loss.backward()

    def truth(self) -> dict[str, list[int]] | None:
        """Returns None: phase lengths are unknown."""
        return None


def random_tokens(vocab: int, sequence: int, samples: int, seed: int) -> TensorDataset:
    """Returns samples of `sequence` random tokens. The target of a token is the next token."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocab, (samples, sequence + 1), generator=generator)
    return TensorDataset(tokens[:, :-1], tokens[:, 1:])
