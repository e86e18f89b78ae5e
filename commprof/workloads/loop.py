"""The training loop of all workloads. It reports phases and steps to a step recorder."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from commprof.workloads.spec import Batch

DEFAULT_EPOCHS = 2
"""Number of epochs if the user gives neither steps nor epochs."""
MIN_DEFAULT_STEPS = 12
"""Smallest default number of steps, so that some steps follow after warm-up."""


class TrainedSteps(Protocol):
    """Interface of a model in training. `Training` implements it."""

    def batches(self, epoch: int) -> Iterator[Sequence[Batch]]:
        """Yields one epoch's batches, grouped by update."""
        ...

    def synchronised(self, last: bool) -> AbstractContextManager[object]:
        """Returns the context of a forward and backward pass.

        last: True in the last pass of an update. Only this pass exchanges gradients.
        """
        ...

    def forward(self, batch: Batch) -> Tensor:
        """Computes the batch's mean loss."""
        ...

    def backward(self, loss: Tensor, weight: float) -> None:
        """Adds the gradients of `weight` times the loss to the present gradients."""
        ...

    def update(self) -> None:
        """Changes the weights and clears the gradients."""
        ...


class StepRecorder(Protocol):
    """Interface by which the loop reports phases and steps to the capture."""

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Marks a phase of the step: data, forward, backward or optimizer."""
        ...

    def step(self) -> None:
        """Ends a step and begins the next step."""
        ...

    def set_enabled(self, on: bool) -> None:
        """Switches capture on or off from the next step."""
        ...


@dataclass(frozen=True)
class LabelledStep:
    """A step that is run after training to measure the cost of capture."""

    label: str
    """State of capture, as in `overhead_states`."""
    duration_ns: int
    """Wall time of the step."""
    cpu_ns: int
    """CPU time of the training thread."""


@dataclass(frozen=True)
class LoopResult:
    """Times and losses that one rank's loop measured without the capture."""

    step_ns: list[int]
    """Wall time of each step, including the recorder's step()."""
    losses: list[float]
    """Mean loss of each step over this rank's samples, before that step's update."""
    step_samples: list[int]
    """Samples of each step on this rank; DistributedSampler's padding counts as samples."""
    duration_ns: int
    """Time from the first step's start to the last step's end, without the `overhead` steps."""
    overhead: list[LabelledStep]
    """Steps that were run after training to measure the cost of capture."""

    def average_loss(self, steps_per_epoch: int) -> float:
        """Returns the mean loss per sample over at most the last `steps_per_epoch` steps."""
        samples = self.step_samples[-steps_per_epoch:]
        losses = self.losses[-steps_per_epoch:]
        weighted = sum(loss * count for loss, count in zip(losses, samples, strict=True))
        return weighted / sum(samples)


def planned_steps(steps_per_epoch: int, steps: int | None, epochs: int | None) -> int:
    """Returns the number of steps to train: `steps`, else the steps of `epochs`, else a default.

    The default is 2 epochs, but at least 12 steps.
    """
    if steps is not None:
        return steps
    if epochs is not None:
        return epochs * steps_per_epoch
    return max(DEFAULT_EPOCHS * steps_per_epoch, MIN_DEFAULT_STEPS)


def overhead_states(steps: int, lot: str) -> list[str]:
    """Returns the state of capture in each of `steps` steps: "on", "off_a" or "off_b".

    Each "on" step forms a pair with an "off" step, in random order, so that a rhythm in the step
    times favours neither state. "off_a" and "off_b" have the same effect: the ratio of their times
    differs from 1 only by chance.

    lot: seed of the random order, the same on all ranks.
    """
    # `lot` may contain an environment variable, whose bytes need not be UTF-8.
    draw = random.Random(os.fsencode(lot))
    states: list[str] = []
    while len(states) < steps:
        for off in draw.sample(("off_a", "off_b"), 2):
            states += draw.sample(("on", off), 2)
    return states[:steps]


def train(
    training: TrainedSteps,
    recorder: StepRecorder,
    steps: int,
    *,
    overhead_steps: int = 0,
    lot: str = "",
    on_step: Callable[[int], None] | None = None,
) -> LoopResult:
    """Trains `steps` steps, and then measures the overhead of capture.

    overhead_steps: number of further steps, with capture on or off as in `overhead_states`.
    lot: seed of the random order of on and off.
    on_step: called after each step with the number of steps done. No step time includes this call.
    """
    runner = _Steps(training, recorder)
    begin_ns = time.monotonic_ns()
    step_ns = []
    for done in range(1, steps + 1):
        step_ns.append(runner.run())
        if on_step:
            on_step(done)
    duration_ns = time.monotonic_ns() - begin_ns
    losses, step_samples = list(runner.losses), list(runner.step_samples)

    overhead = []
    if overhead_steps:
        runner.only_whole_batches()
    for index, label in enumerate(overhead_states(overhead_steps, lot)):
        recorder.set_enabled(label == "on")
        begin_ns = time.thread_time_ns()
        wall_ns = runner.run()
        overhead.append(LabelledStep(label, wall_ns, time.thread_time_ns() - begin_ns))
        if on_step:
            on_step(steps + index + 1)
    if overhead_steps:
        recorder.set_enabled(True)
    return LoopResult(step_ns, losses, step_samples, duration_ns, overhead)


class _Steps:
    def __init__(self, training: TrainedSteps, recorder: StepRecorder) -> None:
        self.losses: list[float] = []
        self.step_samples: list[int] = []
        self._training = training
        self._recorder = recorder
        self._batches = _endless(training)

    def only_whole_batches(self) -> None:
        """From now on skips the smaller last step of each epoch, so that all steps are equal."""
        whole, steps = max(self.step_samples), self._batches
        self._batches = (batches for batches in steps if _samples(batches) == whole)

    def run(self) -> int:
        training, recorder = self._training, self._recorder
        begin_ns = time.monotonic_ns()
        with recorder.phase("data"):
            batches = next(self._batches)
        samples = _samples(batches)
        parts = []
        for number, batch in enumerate(batches, 1):
            weight = batch.samples / samples
            with training.synchronised(last=number == len(batches)):
                with recorder.phase("forward"):
                    loss = training.forward(batch)
                with recorder.phase("backward"):
                    training.backward(loss, weight)
            parts.append((loss.detach(), weight))
        with recorder.phase("optimizer"):
            training.update()
        self.losses.append(sum(loss.item() * weight for loss, weight in parts))
        self.step_samples.append(samples)
        recorder.step()
        return time.monotonic_ns() - begin_ns


def _samples(batches: Sequence[Batch]) -> int:
    return sum(batch.samples for batch in batches)


def _endless(training: TrainedSteps) -> Iterator[Sequence[Batch]]:
    for epoch in itertools.count():
        yield from training.batches(epoch)
