"""Interface of workloads and their optimizers, and the parser of workload names.

On the command line a workload is written as `NAME[:key=value,key=value]`.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import math
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from commprof.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


Schedule = Callable[[float], float]
"""Maps the completed share of the run (0 to 1) to a factor of the learning rate."""


@dataclass(frozen=True)
class OptimizerPlan:
    """What a strategy needs to create an optimizer."""

    kind: type[Optimizer]
    """Class of torch.optim."""
    options: Mapping[str, Any]
    """Keyword arguments of the class, including `lr`."""
    schedule: Schedule
    """Schedule of the learning rate."""


def cosine(progress: float) -> float:
    """Schedule that falls from 1 to 0 along half a cosine (Loshchilov & Hutter 2017, SGDR)."""
    return 0.5 * (1 + math.cos(math.pi * progress))


def step_decay(progress: float) -> float:
    """Schedule of 1, then 0.1 after half of the run, then 0.01 after three quarters."""
    if progress < 0.5:
        return 1.0
    return 0.1 if progress < 0.75 else 0.01


@dataclass(frozen=True)
class LearningRate:
    """Learning rate of each step: the product of base rate, scale, warm-up and schedule."""

    base: float
    """The optimizer's own `lr`."""
    schedule: Schedule
    """Schedule of the learning rate after its warm-up."""
    steps: int
    """Number of steps of the run."""
    scale: float = 1.0
    """Factor of `base` for larger batches (linear scaling: Goyal et al. 2017, arXiv 1706.02677)."""
    warmup_steps: int = 0
    """Number of steps over which the rate grows linearly (gradual warm-up: Goyal et al. 2017)."""

    def at(self, step: int) -> float:
        """Returns the learning rate of a step. Steps count from 0."""
        warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        behind = max(0, step - self.warmup_steps)
        span = max(1, self.steps - self.warmup_steps)
        return self.base * self.scale * warm * self.schedule(min(1.0, behind / span))


def allowed(given: str, names: Sequence[str]) -> str:
    """Returns the end of an error message, which lists the allowed names and may suggest one."""
    close = difflib.get_close_matches(given, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f" (allowed: {', '.join(names)}){hint}"


def flag(name: str) -> str:
    """Returns the command-line option of a field, such as `--clip-norm`."""
    return f"--{name.replace('_', '-')}"


def parse_options(name: str, text: str, options_type: type[Any]) -> Any:
    """Reads comma-separated `key=value` options. Options that are not given keep their defaults.

    A field's metadata may hold `minimum` and `choices`. Raises UsageError for an unknown key, a
    wrong type or a value out of range.
    """
    fields = {field.name: field for field in dataclasses.fields(options_type)}
    types = typing.get_type_hints(options_type)
    values: dict[str, object] = {}
    for item in filter(None, text.split(",")):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise UsageError(f"{name}: {item!r} is not key=value{allowed(key, list(fields))}")
        if key not in fields:
            raise UsageError(f"{name}: unknown option {key!r}{allowed(key, list(fields))}")
        if key in values:
            raise UsageError(f"{name}: option {key!r} is given twice; keep one of them")
        values[key] = _parse_value(f"{name}: {key}", value, types[key], fields[key].metadata)
    return options_type(**values)


def _parse_value(where: str, text: str, kind: Any, metadata: Mapping[str, Any]) -> object:
    if typing.get_origin(kind) is tuple:
        return tuple(_parse_value(where, part, float, metadata) for part in text.split("/"))
    if kind is str:
        choices = metadata.get("choices", (text,))
        if text not in choices:
            raise UsageError(f"{where}={text!r} is unknown{allowed(text, choices)}")
        return text
    minimum = metadata.get("minimum", 0)
    noun = "a whole number" if kind is int else "a number"
    try:
        number = int(text) if kind is int else float(text)
    except ValueError:
        raise UsageError(f"{where}={text!r} is not {noun} (allowed: {minimum} or more)") from None
    if not minimum <= number < math.inf:
        raise UsageError(f"{where}={text} is out of range (allowed: {noun}, {minimum} or more)")
    return number


_CLASSES = {
    "lora": "commprof.workloads.models.lora:Lora",
    "mlp": "commprof.workloads.models.mlp:Mlp",
    "resnet50": "commprof.workloads.models.resnet50:Resnet50",
    "timed": "commprof.workloads.models.timed:Timed",
    "transformer": "commprof.workloads.models.transformer:Transformer",
}

WORKLOAD_NAMES = tuple(sorted(_CLASSES))
"""Names that parse_spec() accepts, available without importing torch."""


@dataclass(frozen=True)
class Shard:
    """Parameters of `Workload.build`: the rank, and the job that it belongs to."""

    rank: int
    """This process's rank, 0 to world_size - 1."""
    world_size: int
    """Number of ranks in the job."""
    per_rank_batch: int
    """Number of samples of this rank per backward pass."""
    steps: int
    """Number of optimizer steps of the run."""
    seed: int
    """Seed of data and weights, the same on all ranks."""
    device: str = "cpu"
    """Device of model and batches, as torch names it."""


class Batch(Protocol):
    """Interface of the data for one backward pass."""

    @property
    def samples(self) -> int:
        """Number of samples in this batch. The last batch of an epoch may be smaller."""
        ...


class Trainee(Protocol):
    """Interface of a workload that was built for one rank."""

    @property
    def model(self) -> nn.Module:
        """The bare module, which a strategy wraps or shards."""
        ...

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """Parts of the model, in the order in which they run. The parts share no parameters."""
        ...

    def ddp_options(self) -> dict[str, Any]:
        """Returns the keyword arguments of DistributedDataParallel for this workload."""
        ...

    def batches(self, epoch: int) -> Iterator[Any]:
        """Yields this rank's batches of one epoch. Fetching a batch is the data phase of a step."""
        ...

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        """Runs the forward phase on the wrapped `model`, and returns the batch's mean loss."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Runs the backward phase, including the exchange of gradients."""
        ...

    def updates(self) -> OptimizerPlan | Callable[[], None]:
        """Returns the plan of an optimizer, or a function that runs the whole optimizer phase."""
        ...

    def truth(self) -> dict[str, list[int]] | None:
        """Returns the true start and length of each phase, in ns, by step; None if unknown."""
        ...


class Workload(Protocol):
    """Interface of a workload: a model, its data and its optimizer. It holds no tensors."""

    name: ClassVar[str]
    """Name on the command line."""
    options_type: ClassVar[type[Any]]
    """Frozen dataclass of the options; a field's metadata may hold `minimum` and `choices`."""
    build_imports: ClassVar[tuple[str, ...]]
    """Slow modules that build() imports. A launcher may import these modules once for all ranks."""
    default_batch_size: ClassVar[int]
    """Batch size if the user gives none: per rank in weak scaling, global in strong scaling."""
    split_dependence: ClassVar[str]
    """Reason why the loss depends on how ranks split a global batch; empty if there is none."""

    def __init__(self, options: Any) -> None: ...

    @property
    def parameter_count(self) -> int:
        """Exact number of trainable parameters."""
        ...

    def describe(self) -> str:
        """Describes the model, its size and its data, in one or two sentences."""
        ...

    def refused(self) -> Mapping[str, str]:
        """Returns the names of refused strategies and training options, each with the reason."""
        ...

    def steps_per_epoch(self, world_size: int, per_rank_batch: int) -> int:
        """Returns a rank's number of steps per epoch, if each step has one backward pass."""
        ...

    def build(self, shard: Shard) -> Trainee:
        """Allocates model and data for one rank."""
        ...


def parse_spec(text: str) -> Workload:
    """Returns the workload that `text` names, e.g. `timed:layers=2,backward_ms=10/5`.

    The keys are fields of the workload's options; `/` separates per-layer values.
    Raises UsageError for an unknown name or key, a wrong type or a value out of range.
    """
    name, _, rest = text.partition(":")
    if name not in _CLASSES:
        raise UsageError(f"unknown workload {name!r}{allowed(name, WORKLOAD_NAMES)}")
    module_name, _, class_name = _CLASSES[name].partition(":")
    workload: type[Workload] = getattr(importlib.import_module(module_name), class_name)
    options = parse_options(name, rest, workload.options_type)
    return workload(options)
