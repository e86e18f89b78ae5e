"""How ranks share the training of a model: who holds which weights, and what is exchanged."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from commprof.errors import UsageError
from commprof.workloads.spec import allowed, parse_options

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from commprof.workloads.options import TrainingOptions
    from commprof.workloads.spec import OptimizerPlan, Shard, Trainee
    from commprof.workloads.strategies.theory import Expected

_CLASSES = {
    "ddp": "commprof.workloads.strategies.ddp:Ddp",
    "fsdp": "commprof.workloads.strategies.fsdp:Fsdp",
    "hsdp": "commprof.workloads.strategies.hsdp:Hsdp",
    "zero1": "commprof.workloads.strategies.zero1:Zero1",
}

STRATEGY_NAMES = tuple(_CLASSES)
"""The names that parse_strategy() knows, without importing torch."""


class Strategy(Protocol):
    """One way to train a model on all ranks; holds no tensors."""

    name: ClassVar[str]
    """The name on the command line."""
    options_type: ClassVar[type[Any]]
    """The frozen dataclass of its options."""
    replicated: ClassVar[bool]
    """Whether every rank holds all weights, which then are equal on all of them."""
    offloads: ClassVar[bool]
    """Whether it can keep its shards in the host's memory."""

    def __init__(self, options: Any = None) -> None: ...

    def check(self, world_size: int) -> None:
        """Raises UsageError for a number of ranks that the strategy cannot train on."""
        ...

    def expected(
        self, trainee: Trainee, options: TrainingOptions, world_size: int
    ) -> tuple[Expected, ...]:
        """Computes what a step must exchange, one row per operation, for an unwrapped model."""
        ...

    def wrap(self, trainee: Trainee, options: TrainingOptions, shard: Shard) -> nn.Module:
        """Wraps the model that is called in training; needs a process group."""
        ...

    def optimizer(self, plan: OptimizerPlan, model: nn.Module) -> Optimizer:
        """Makes an optimizer over what this rank holds of the trained parameters."""
        ...

    def synchronised(self, model: nn.Module, last: bool) -> AbstractContextManager[object]:
        """Context of one forward and backward pass; only the last one exchanges gradients."""
        ...

    def autocast(self, options: TrainingOptions, device: str) -> AbstractContextManager[object]:
        """Context of the forward pass, loss included."""
        ...

    def clip(self, model: nn.Module, largest_norm: float) -> None:
        """Scales all gradients down to this 2-norm over the whole model."""
        ...


def parse_strategy(text: str) -> Strategy:
    """Makes the strategy that `text` names, e.g. `ddp` or `hsdp:shard=2`.

    Raises UsageError for an unknown name or option, and a value out of range.
    """
    name, _, rest = text.partition(":")
    if name not in _CLASSES:
        raise UsageError(f"unknown strategy {name!r}{allowed(name, STRATEGY_NAMES)}")
    module_name, _, class_name = _CLASSES[name].partition(":")
    strategy: type[Strategy] = getattr(importlib.import_module(module_name), class_name)
    return strategy(parse_options(name, rest, strategy.options_type))
