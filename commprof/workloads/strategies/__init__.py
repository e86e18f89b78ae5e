"""Strategies of training a model on several ranks."""

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
"""Names that parse_strategy() accepts, available without importing torch."""


class Strategy(Protocol):
    """Interface of a training strategy. A strategy holds no tensors."""

    name: ClassVar[str]
    """Name on the command line."""
    options_type: ClassVar[type[Any]]
    """Frozen dataclass of the options."""
    replicated: ClassVar[bool]
    """True if every rank holds all weights."""
    offloads: ClassVar[bool]
    """True if the strategy can keep its shards in the host's memory."""

    def __init__(self, options: Any = None) -> None: ...

    def check(self, world_size: int) -> None:
        """Raises UsageError for a number of ranks that the strategy cannot train on."""
        ...

    def expected(
        self, trainee: Trainee, options: TrainingOptions, world_size: int
    ) -> tuple[Expected, ...]:
        """Returns a step's expected collectives, one row per operation. Call this before `wrap`."""
        ...

    def wrap(self, trainee: Trainee, options: TrainingOptions, shard: Shard) -> nn.Module:
        """Returns the wrapped model. Needs a process group."""
        ...

    def optimizer(self, plan: OptimizerPlan, model: nn.Module) -> Optimizer:
        """Returns an optimizer for the trained parameters that this rank updates."""
        ...

    def synchronised(self, model: nn.Module, last: bool) -> AbstractContextManager[object]:
        """Returns the context of a forward and a backward pass.

        Ranks exchange gradients only if `last` is true: in the last pass of a step.
        """
        ...

    def autocast(self, options: TrainingOptions, device: str) -> AbstractContextManager[object]:
        """Returns the context of the forward pass and the loss, for the chosen precision."""
        ...

    def clip(self, model: nn.Module, largest_norm: float) -> None:
        """Scales gradients so that their 2-norm over the model is at most `largest_norm`."""
        ...


def listed_strategies(text: str) -> list[str]:
    """Splits `ddp,hsdp:shard=2,wrap_blocks=2` into strategies, each with its options."""
    found: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        is_option = "=" in part.partition(":")[0]
        if is_option and found and ":" in found[-1]:
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def parse_strategy(text: str) -> Strategy:
    """Returns the strategy that `text` names, e.g. `ddp` or `hsdp:shard=2`.

    Raises UsageError for an unknown name or option, or a value out of range.
    """
    name, _, rest = text.partition(":")
    if name not in _CLASSES:
        raise UsageError(f"unknown strategy {name!r}{allowed(name, STRATEGY_NAMES)}")
    module_name, _, class_name = _CLASSES[name].partition(":")
    strategy: type[Strategy] = getattr(importlib.import_module(module_name), class_name)
    return strategy(parse_options(name, rest, strategy.options_type))
