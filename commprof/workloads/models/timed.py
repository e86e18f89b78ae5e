"""Workload `timed`: phases of known length and gradients of known size, for tests.

Phases sleep until absolute deadlines on the capture's clock (CLOCK_MONOTONIC), so that small delays
do not add up. A layer sharded by FSDP2 sleeps for its length instead: a deadline would absorb the
wait for the layer's parameters.

With late_phase=pause, a child process stops this process for a time (SIGSTOP).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from commprof.errors import CommprofError, UsageError
from commprof.workloads.spec import Shard, Trainee

_SCRIPT = Path(__file__).with_name("stopping_child.py")
_END_S = 5.0


class Stopper:
    """Pauses this process, with a child process that sends SIGSTOP and later SIGCONT."""

    def __init__(self) -> None:
        """Starts the child process. Raises CommprofError if the child cannot stop this process."""
        # -I -S: the child imports no module of the user or of commprof.
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SCRIPT), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.close = weakref.finalize(self, _end, self._child)
        self._await_answer()

    def stop_for(self, duration_ns: int) -> None:
        """Pauses this process for `duration_ns`, and returns when this process runs again.

        Raises:
            CommprofError: the child process that sends the signals has ended.
        """
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(b"%d\n" % duration_ns)
            self._child.stdin.flush()
        except BrokenPipeError:
            pass  # the next line reports that the child has ended
        self._await_answer()

    def _await_answer(self) -> None:
        assert self._child.stdout is not None
        if not self._child.stdout.readline():
            raise CommprofError(
                f"the child process that pauses process {os.getpid()} has ended: late_phase=pause "
                "needs Linux 5.3 or later, with pidfd_open allowed; choose another late_phase"
            )


def _end(child: subprocess.Popen[bytes]) -> None:
    child.communicate(timeout=_END_S)


_Draw = Callable[[int], Tensor]
_PHASES = ("data", "forward", "backward", "optimizer")
_PAUSE = "pause"
_PAUSED = "forward"
_STEPS_PER_EPOCH = 6
_BYTES_PER_ELEMENT = 4
_NS_PER_MS = 1_000_000
_SLEEPS = "it sleeps and computes nothing"
_NO_OPTIMIZER = "it has no optimizer"
_REFUSED = {
    "zero1": _NO_OPTIMIZER,
    "precision": _SLEEPS,
    "clip_norm": _NO_OPTIMIZER,
    "checkpoint_activations": _SLEEPS,
    "cpu_offload": _NO_OPTIMIZER,
    "scale_lr": _NO_OPTIMIZER,
    "lr_warmup": _NO_OPTIMIZER,
}


@dataclass(frozen=True)
class TimedOptions:
    """Lengths of the phases (ms) and sizes of the gradients (MB = 1e6 bytes).

    A per-layer option has one value for each layer, in forward order, or one value for all layers.
    """

    layers: int = field(default=4, metadata={"minimum": 1})
    """Number of layers; backward runs through the layers in reverse order."""
    data_ms: float = 2.0
    """Length of the data phase."""
    forward_ms: tuple[float, ...] = (2.0,)
    """Length of each layer's forward."""
    backward_ms: tuple[float, ...] = (4.0,)
    """Length of each layer's backward. The layer's gradient is ready at its end."""
    gradient_mb: tuple[float, ...] = (1.0,)
    """Size of each layer's fp32 gradient; 0 makes a layer without parameters."""
    gradients: str = field(default="constant", metadata={"choices": ("constant", "normal")})
    """Values of the gradients. `constant`: rank + 1; `normal`: drawn once from a normal
    distribution."""
    optimizer_ms: float = 0.0
    """Length of the optimizer phase."""
    bucket_cap_mb: float = 0.0
    """DDP's bucket_cap_mb; 0 for DDP's default."""
    late_rank: int = field(default=-1, metadata={"minimum": -1})
    """Rank that is late; -1 for no rank."""
    late_ms: float = 0.0
    """Time by which the rank is late."""
    late_phase: str = field(default="backward", metadata={"choices": (*_PHASES, _PAUSE)})
    """Phase that the late rank begins with a sleep of `late_ms`. "pause": the rank's process is
    stopped (SIGSTOP) for `late_ms` in forward."""
    late_every: int = field(default=1, metadata={"minimum": 1})
    """The rank is late in every n-th step."""

    def __post_init__(self) -> None:
        for name in ("forward_ms", "backward_ms", "gradient_mb"):
            given = len(getattr(self, name))
            if given not in (1, self.layers):
                raise UsageError(
                    f"timed: {name} has {given} values for layers={self.layers} "
                    f"(allowed: 1 value, or {self.layers} separated by '/')"
                )
        if not any(self.gradient_counts):
            raise UsageError(
                "timed: gradient_mb is 0 for every layer, and DDP refuses a model without "
                "parameters; give at least one layer a gradient_mb greater than 0"
            )

    def per_layer(self, values: tuple[float, ...]) -> tuple[float, ...]:
        """Expands a per-layer option to one value for each layer."""
        return values * self.layers if len(values) == 1 else values

    @property
    def gradient_counts(self) -> tuple[int, ...]:
        """Number of elements of each layer's gradient."""
        sizes = self.per_layer(self.gradient_mb)
        return tuple(round(size * 1e6 / _BYTES_PER_ELEMENT) for size in sizes)


class Timed:
    """Workload of layers that sleep instead of computing. A batch is only a number of samples."""

    name: ClassVar[str] = "timed"
    options_type: ClassVar[type[Any]] = TimedOptions
    build_imports: ClassVar[tuple[str, ...]] = ()
    default_batch_size: ClassVar[int] = 16
    split_dependence: ClassVar[str] = ""

    def __init__(self, options: TimedOptions | None = None) -> None:
        self.options = options or TimedOptions()

    @property
    def parameter_count(self) -> int:
        """Number of elements of all gradients."""
        return sum(self.options.gradient_counts)

    def describe(self) -> str:
        """Describes the phases' lengths, the number of parameters and the late rank."""
        chosen = self.options
        text = (
            f"timed: data {chosen.data_ms:g} ms, "
            f"forward {sum(chosen.per_layer(chosen.forward_ms)):g} ms, "
            f"backward {sum(chosen.per_layer(chosen.backward_ms)):g} ms, "
            f"optimizer {chosen.optimizer_ms:g} ms by sleeping; {chosen.layers} layers, "
            f"{self.parameter_count:,} parameters."
        )
        if chosen.late_rank < 0:
            return text
        how = f"{chosen.late_ms:g} ms late in {chosen.late_phase}"
        if chosen.late_phase == _PAUSE:
            how = f"stopped for {chosen.late_ms:g} ms in {_PAUSED}"
        return f"{text} Rank {chosen.late_rank} is {how} in 1 of {chosen.late_every} steps."

    def refused(self) -> Mapping[str, str]:
        """Maps the name of each refused strategy or option to the reason."""
        return _REFUSED

    def steps_per_epoch(self, world_size: int, per_rank_batch: int) -> int:
        """Returns a fixed number, because this workload has no data set to divide."""
        return _STEPS_PER_EPOCH

    def build(self, shard: Shard) -> Trainee:
        """Builds one rank's model, which sleeps instead of computing."""
        return _TimedTrainee(self.options, shard)


def _drawing(values: str, rank: int) -> _Draw:
    if values == "constant":
        return lambda count: torch.full((count,), float(rank + 1))
    generator = torch.Generator("cpu").manual_seed(rank)
    return lambda count: torch.randn(count, generator=generator, device="cpu").to(
        torch.get_default_device()
    )


class _TimedFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, signal: Tensor, weight: Tensor | None, layer: _Layer) -> Tensor:
        ctx.layer = layer
        layer.pacer.wait(layer.forward_ns)
        return signal.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        layer: _Layer = ctx.layer
        if layer.begins_backward:
            # Autograd runs callbacks in the order in which they were queued: this callback runs
            # before DDP's callback.
            Variable._execution_engine.queue_callback(layer.pacer.stamp)
        gradient = layer.fresh_gradient()
        layer.pacer.wait(layer.backward_ns)
        return grads[0], gradient, None


class _Layer(nn.Module):
    def __init__(
        self, pacer: Pacer, forward_ms: float, backward_ms: float, count: int, draw: _Draw
    ) -> None:
        super().__init__()
        self.pacer = pacer
        self.forward_ns = round(forward_ms * _NS_PER_MS)
        self.backward_ns = round(backward_ms * _NS_PER_MS)
        self.weight = nn.Parameter(torch.zeros(count)) if count else None
        self._gradient = draw(count)
        self.begins_backward = False

    def fresh_gradient(self) -> Tensor | None:
        """Returns a new tensor on reused memory, which causes no page faults.

        Autograd may use the tensor as `.grad`, because nothing writes to this memory.
        """
        return None if self.weight is None else self._gradient.detach()

    def forward(self, signal: Tensor) -> Tensor:
        result: Tensor = _TimedFunction.apply(signal, self.weight, self)
        return result


class _Model(nn.Module):
    """The layers in forward order, after an extra layer without parameters, of length 0.

    The extra layer runs last in backward. Only DDP's wait for communication comes later.
    """

    def __init__(self, options: TimedOptions, pacer: Pacer, draw: _Draw) -> None:
        super().__init__()
        lengths = zip(
            options.per_layer(options.forward_ms),
            options.per_layer(options.backward_ms),
            options.gradient_counts,
            strict=True,
        )
        tail = _Layer(pacer, 0.0, 0.0, 0, draw)
        layers = [tail, *(_Layer(pacer, *x, draw) for x in lengths)]
        layers[-1].begins_backward = True
        self.layers = nn.Sequential(*layers)
        self.blocks = [layer for layer in layers if layer.weight is not None]

    def forward(self, signal: Tensor) -> Tensor:
        result: Tensor = self.layers(signal)
        return result


@dataclass(frozen=True)
class _NominalBatch:
    samples: int


class _TimedTrainee:
    def __init__(self, options: TimedOptions, shard: Shard) -> None:
        self._options = options
        self._shard = shard
        self._pacer = Pacer()
        self._stopper = _stopper_of(options, shard)
        self._step = 0
        self._truth: dict[str, list[int]] = {
            f"{phase}_{key}": [] for phase in _PHASES for key in ("ns", "begin_ns")
        }
        with torch.device(shard.device):
            model = _Model(options, self._pacer, _drawing(options.gradients, shard.rank))
        self.model: nn.Module = model
        self.blocks: Sequence[nn.Module] = model.blocks

    def ddp_options(self) -> dict[str, Any]:
        """Makes gradients views of DDP's buckets, so that DDP does not copy gradients back."""
        options: dict[str, Any] = {"gradient_as_bucket_view": True}
        if self._options.bucket_cap_mb:
            options["bucket_cap_mb"] = self._options.bucket_cap_mb
        return options

    def batches(self, epoch: int) -> Iterator[_NominalBatch]:
        for _ in range(_STEPS_PER_EPOCH):
            self._step += 1
            self._pacer.start(self._lateness_ns("data"))
            self._end_phase("data", self._options.data_ms)
            yield _NominalBatch(self._shard.per_rank_batch)

    def forward(self, model: nn.Module, batch: _NominalBatch) -> Tensor:
        late_ns = self._lateness_ns(_PAUSED)
        self._pacer.absorbs = not hasattr(model, "unshard")
        self._pacer.start(late_ns)
        if late_ns and self._stopper is not None:
            self._stopper.stop_for(late_ns)
        signal = torch.zeros(1, requires_grad=True, device=self._shard.device)
        loss: Tensor = model(signal).sum()
        self._pacer.stamp()
        self._end_phase("forward")
        return loss

    def backward(self, loss: Tensor) -> None:
        self._pacer.start(self._lateness_ns("backward"))
        loss.backward()
        self._end_phase("backward")

    def updates(self) -> Callable[[], None]:
        return self._update

    def _update(self) -> None:
        """Clears the gradients and sleeps. Changing the weights would take computing time."""
        self._pacer.start(self._lateness_ns("optimizer"))
        self.model.zero_grad()
        self._end_phase("optimizer", self._options.optimizer_ms)

    def truth(self) -> dict[str, list[int]] | None:
        """Returns the starts and lengths of the phases in ns, with one value per step.

        Example of keys: "forward_begin_ns" for starts, on the capture's clock, and "forward_ns" for
        lengths. Backward ends where DDP begins to wait.
        """
        return self._truth

    def _end_phase(self, phase: str, final_ms: float | None = None) -> None:
        if final_ms is not None:
            self._pacer.wait(round(final_ms * _NS_PER_MS))
            self._pacer.stamp()
        begin_ns, end_ns = self._pacer.span_ns
        self._truth[f"{phase}_begin_ns"].append(begin_ns)
        self._truth[f"{phase}_ns"].append(end_ns - begin_ns)

    def _lateness_ns(self, phase: str) -> int:
        late_phase = self._options.late_phase
        late = (
            self._shard.rank == self._options.late_rank
            and phase == (_PAUSED if late_phase == _PAUSE else late_phase)
            and self._step % self._options.late_every == 0
        )
        return round(self._options.late_ms * _NS_PER_MS) if late else 0


def _stopper_of(options: TimedOptions, shard: Shard) -> Stopper | None:
    chosen = options.late_phase == _PAUSE and options.late_rank == shard.rank
    return Stopper() if chosen and options.late_ms > 0 else None


# A long sleep ends this much before the deadline, because sleeps overshoot. Short sleeps follow.
_WAKE_EARLY_NS = 200_000
_SHORT_SLEEP_S = 20e-6


class Pacer:
    """Sleeps until absolute deadlines within one phase."""

    def __init__(self) -> None:
        self._started_ns = self._due_ns = self._reached_ns = 0
        #: True if time spent between two waits shortens the second wait.
        self.absorbs = True

    def start(self, delay_ns: int = 0) -> None:
        """Starts a phase now; the first `wait` sleeps `delay_ns` longer."""
        self._started_ns = time.monotonic_ns()
        self._due_ns = self._started_ns + delay_ns

    def wait(self, duration_ns: int) -> None:
        """Sleeps until `duration_ns` after the previous deadline, or not at all if this is past.

        If `absorbs` is False, a previous deadline in the past is first replaced by the present
        time.
        """
        begin_ns = self._due_ns if self.absorbs else max(self._due_ns, time.monotonic_ns())
        self._due_ns = begin_ns + duration_ns
        _sleep_until(self._due_ns)

    def stamp(self) -> None:
        """Records the present time as the end of the phase."""
        self._reached_ns = time.monotonic_ns()

    @property
    def span_ns(self) -> tuple[int, int]:
        """Start of the phase, and the end that `stamp` recorded."""
        return self._started_ns, self._reached_ns


def _sleep_until(due_ns: int) -> None:
    left_ns = due_ns - time.monotonic_ns()
    if left_ns > _WAKE_EARLY_NS:
        time.sleep((left_ns - _WAKE_EARLY_NS) / 1e9)
    while time.monotonic_ns() < due_ns:
        time.sleep(_SHORT_SLEEP_S)
