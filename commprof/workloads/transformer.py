"""Workload `transformer`: a small causal language model on random tokens, trained with Adam."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from commprof.errors import UsageError
from commprof.workloads.spec import Shard, Trainee


@dataclass(frozen=True)
class TransformerOptions:
    """Sizes of the model and of its data. The defaults are those of the scaling study 000."""

    vocab: int = field(default=2048, metadata={"minimum": 2})
    """Distinct tokens."""
    d_model: int = field(default=256, metadata={"minimum": 1})
    """Width of the embeddings and of every layer."""
    heads: int = field(default=4, metadata={"minimum": 1})
    """Attention heads per layer; must divide d_model."""
    layers: int = field(default=2, metadata={"minimum": 1})
    """Encoder layers."""
    feedforward: int = field(default=512, metadata={"minimum": 1})
    """Width of the feed-forward part of a layer."""
    sequence: int = field(default=128, metadata={"minimum": 1})
    """Tokens per sample that are predicted."""
    samples: int = field(default=320, metadata={"minimum": 1})
    """Samples in the data set, over all ranks."""
    learning_rate: float = 5e-4
    """Adam's initial rate; a cosine takes it to 0 over the steps of the run."""

    def __post_init__(self) -> None:
        if self.d_model % self.heads:
            divisors = [n for n in range(1, self.d_model + 1) if self.d_model % n == 0]
            raise UsageError(
                f"transformer: heads={self.heads} does not divide d_model={self.d_model} "
                f"(allowed: {', '.join(map(str, divisors))})"
            )


class _Model(nn.Module):
    """Token and learned position embeddings, post-norm encoder layers, an untied output head."""

    mask: Tensor

    def __init__(self, options: TransformerOptions) -> None:
        super().__init__()
        width = options.d_model
        self.tokens = nn.Embedding(options.vocab, width)
        self.positions = nn.Embedding(options.sequence, width)
        layer = nn.TransformerEncoderLayer(
            width, options.heads, options.feedforward, dropout=0.0, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, options.layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, options.vocab)
        mask = nn.Transformer.generate_square_subsequent_mask(options.sequence)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.tokens(tokens) + self.positions.weight
        logits: Tensor = self.head(self.encoder(embedded, mask=self.mask, is_causal=True))
        return logits


def _count_parameters(options: TransformerOptions) -> int:
    with torch.device("meta"):
        model = _Model(options)
    count: int = sum(parameter.numel() for parameter in model.parameters())
    return count


class Transformer:
    """The language model of the scaling study 000; see TransformerOptions for its sizes."""

    name: ClassVar[str] = "transformer"
    options_type: ClassVar[type[Any]] = TransformerOptions
    build_imports: ClassVar[tuple[str, ...]] = ("torch._dynamo",)  # the first torch.optim optimizer
    default_batch_size: ClassVar[int] = 16

    def __init__(self, options: TransformerOptions | None = None) -> None:
        self.options = options or TransformerOptions()

    @property
    def parameter_count(self) -> int:
        """Trainable parameters, exactly; counted without allocating them."""
        return _count_parameters(self.options)

    def describe(self) -> str:
        """Sizes and exact parameter count; for the default sizes, why study 000 has another."""
        chosen = self.options
        text = (
            f"transformer: {self.parameter_count:,} parameters (vocab {chosen.vocab}, "
            f"d_model {chosen.d_model}, {chosen.heads} heads, {chosen.layers} layers, "
            f"feedforward {chosen.feedforward}, sequence {chosen.sequence}), "
            f"{chosen.samples} samples of random tokens."
        )
        if chosen != TransformerOptions():
            return text
        wider = _count_parameters(replace(chosen, feedforward=1024))
        deeper = _count_parameters(replace(chosen, layers=3))
        return (
            f"{text} (The report that this workload follows says about 2.66M, which fits "
            f"feedforward 1024, {wider:,}, or 3 layers, {deeper:,}, but not the sizes it lists.)"
        )

    def steps_per_epoch(self, world_size: int, per_rank_batch: int) -> int:
        """Steps for one pass; DistributedSampler pads so that all ranks take equally many."""
        return math.ceil(math.ceil(self.options.samples / world_size) / per_rank_batch)

    def build(self, shard: Shard) -> Trainee:
        """Model, data and optimizer of one rank; equal weights and data set on every rank."""
        return _TransformerTrainee(self.options, shard)


@dataclass(frozen=True)
class _TokenBatch:
    tokens: Tensor
    """Shape (samples, sequence + 1): inputs and, shifted by one, targets."""

    @property
    def samples(self) -> int:
        return self.tokens.shape[0]


class _TransformerTrainee:
    def __init__(self, options: TransformerOptions, shard: Shard) -> None:
        generator = torch.Generator().manual_seed(shard.seed)
        shape = (options.samples, options.sequence + 1)
        data = TensorDataset(torch.randint(options.vocab, shape, generator=generator))
        self._sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(
            data, shard.world_size, shard.rank, shuffle=True, seed=shard.seed
        )
        self._loader = DataLoader(data, batch_size=shard.per_rank_batch, sampler=self._sampler)
        torch.manual_seed(shard.seed)
        self._device = shard.device
        with torch.device(shard.device):
            self.model: nn.Module = _Model(options)
        self._optimizer = torch.optim.Adam(self.model.parameters(), lr=options.learning_rate)
        self._schedule = CosineAnnealingLR(self._optimizer, T_max=shard.steps)

    def ddp_options(self) -> dict[str, Any]:
        return {}

    def batches(self, epoch: int) -> Iterator[_TokenBatch]:
        self._sampler.set_epoch(epoch)
        for (tokens,) in self._loader:
            yield _TokenBatch(tokens.to(self._device))

    def forward(self, model: nn.Module, batch: _TokenBatch) -> Tensor:
        logits = model(batch.tokens[:, :-1])
        targets = batch.tokens[:, 1:]
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def update(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._schedule.step()

    def truth(self) -> dict[str, list[int]] | None:
        return None
