"""Workload `transformer`: a small causal language model on random tokens, trained with Adam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from commprof.errors import UsageError
from commprof.workloads.counting import count_parameters
from commprof.workloads.spec import OptimizerPlan, Shard, Trainee, cosine
from commprof.workloads.trainees import DataTrainee, OfSamples, random_tokens


@dataclass(frozen=True)
class TransformerOptions:
    """Sizes of the model and of its data, and the learning rate."""

    vocab: int = field(default=2048, metadata={"minimum": 2})
    """Number of distinct tokens."""
    d_model: int = field(default=256, metadata={"minimum": 1})
    """Width of the embeddings and of every layer."""
    heads: int = field(default=4, metadata={"minimum": 1})
    """Number of attention heads per layer; must divide d_model."""
    layers: int = field(default=2, metadata={"minimum": 1})
    """Number of encoder layers."""
    feedforward: int = field(default=512, metadata={"minimum": 1})
    """Width of the feed-forward part of a layer."""
    sequence: int = field(default=128, metadata={"minimum": 1})
    """Number of tokens per sample; the model predicts the next token at each position."""
    samples: int = field(default=320, metadata={"minimum": 1})
    """Number of samples in the data set, over all ranks."""
    learning_rate: float = 5e-4
    """Adam's initial learning rate, which falls to 0 along a cosine over the steps of the run."""

    def __post_init__(self) -> None:
        if self.d_model % self.heads:
            divisors = [n for n in range(1, self.d_model + 1) if self.d_model % n == 0]
            raise UsageError(
                f"transformer: heads={self.heads} does not divide d_model={self.d_model} "
                f"(allowed: {', '.join(map(str, divisors))})"
            )


class _Model(nn.Module):
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
        # The mask is not a buffer, because DDP would broadcast it before each forward pass.
        self.mask = nn.Transformer.generate_square_subsequent_mask(options.sequence)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.tokens(tokens) + self.positions.weight
        logits: Tensor = self.head(self.encoder(embedded, mask=self.mask, is_causal=True))
        return logits


class Transformer(OfSamples):
    """Workload of a small language model, with the sizes in TransformerOptions."""

    name: ClassVar[str] = "transformer"
    options_type: ClassVar[type[Any]] = TransformerOptions
    build_imports: ClassVar[tuple[str, ...]] = ()
    default_batch_size: ClassVar[int] = 16
    split_dependence: ClassVar[str] = ""

    def __init__(self, options: TransformerOptions | None = None) -> None:
        self.options = options or TransformerOptions()

    @property
    def parameter_count(self) -> int:
        """Exact number of trainable parameters, counted without allocating them."""
        return count_parameters(lambda: _Model(self.options))

    def describe(self) -> str:
        """Describes sizes and exact parameter count."""
        chosen = self.options
        return (
            f"transformer: {self.parameter_count:,} parameters (vocab {chosen.vocab}, "
            f"d_model {chosen.d_model}, {chosen.heads} heads, {chosen.layers} layers, "
            f"feedforward {chosen.feedforward}, sequence {chosen.sequence}), "
            f"{chosen.samples} samples of random tokens."
        )

    def refused(self) -> Mapping[str, str]:
        """Returns an empty dictionary: no strategy or option is refused."""
        return {}

    def build(self, shard: Shard) -> Trainee:
        """Builds one rank's model and data; weights and data set are the same on all ranks."""
        return _TransformerTrainee(self.options, shard)


class _TransformerTrainee(DataTrainee):
    def __init__(self, options: TransformerOptions, shard: Shard) -> None:
        data = random_tokens(options.vocab, options.sequence, options.samples, shard.seed)
        super().__init__(data, shard)
        torch.manual_seed(shard.seed)
        with torch.device(shard.device):
            model = _Model(options)
        self.model: nn.Module = model
        self.blocks: Sequence[nn.Module] = list(model.encoder.layers)
        self._learning_rate = options.learning_rate

    def updates(self) -> OptimizerPlan:
        return OptimizerPlan(torch.optim.Adam, {"lr": self._learning_rate}, cosine)
