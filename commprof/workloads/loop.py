"""The one training loop: it runs every workload, phase by phase, under a step recorder."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn

from commprof.workloads.spec import Trainee

DEFAULT_EPOCHS = 2
"""Epochs trained when the user gives neither steps nor epochs."""
MIN_DEFAULT_STEPS = 12
"""The least number of steps trained in that case: fewer leave nothing after warm-up."""

OVERHEAD_PATTERN = ("off_a", "on", "off_b", "on")
"""Capture states in the overhead block, in turn. on against off is what capture costs; off_a
against off_b, the same thing under two names, is what such a comparison shows by chance."""


class StepRecorder(Protocol):
    """What the loop tells the capture."""

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Marks a phase of the step: data, forward, backward or optimizer."""
        ...

    def step(self) -> None:
        """Ends a step; the next one begins."""
        ...

    def set_enabled(self, on: bool) -> None:
        """Capture on or off from the next step."""
        ...


@dataclass(frozen=True)
class LabelledStep:
    """One step of the overhead block."""

    label: str
    """Capture state: one of OVERHEAD_PATTERN."""
    duration_ns: int
    """Wall time of the step."""


@dataclass(frozen=True)
class LoopResult:
    """What one rank measured of its own training, without the capture."""

    step_ns: list[int]
    """Wall time of each step: its four phases, reading the loss, and the recorder's step()."""
    losses: list[float]
    """Loss of each step on this rank's batch, before that step's update."""
    step_samples: list[int]
    """Samples of each step on this rank; DistributedSampler's padding counts as samples."""
    duration_ns: int
    """From the begin of the first step to the end of the last one; without the overhead block."""
    overhead: list[LabelledStep]
    """The overhead block, in the order it ran; empty if there was none."""

    def average_loss(self, steps_per_epoch: int) -> float:
        """Mean loss per sample over the last `steps_per_epoch` steps, or all if there are fewer.

        That is the last epoch where whole epochs were trained, and as many steps elsewhere.
        """
        samples = self.step_samples[-steps_per_epoch:]
        losses = self.losses[-steps_per_epoch:]
        weighted = sum(loss * count for loss, count in zip(losses, samples, strict=True))
        return weighted / sum(samples)


def planned_steps(steps_per_epoch: int, steps: int | None, epochs: int | None) -> int:
    """Steps to train: `steps`, else whole `epochs`, else 2 epochs but not less than 12 steps."""
    if steps is not None:
        return steps
    if epochs is not None:
        return epochs * steps_per_epoch
    return max(DEFAULT_EPOCHS * steps_per_epoch, MIN_DEFAULT_STEPS)


def train(
    trainee: Trainee,
    ddp: nn.Module,
    recorder: StepRecorder,
    steps: int,
    *,
    overhead_steps: int = 0,
    block_steps: int = 1,
    on_step: Callable[[int], None] | None = None,
) -> LoopResult:
    """Train `steps` steps, over as many epochs as that takes, then the overhead block.

    ddp: the trainee's model, wrapped. overhead_steps: further steps of the same work in which
    capture goes through OVERHEAD_PATTERN, `block_steps` at a time and on every rank at the same
    step, with batches of equal size; it is on afterwards. on_step: told the number of steps done,
    between steps and untimed.
    """
    runner = _Steps(trainee, ddp, recorder)
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
    for index in range(overhead_steps):
        label = OVERHEAD_PATTERN[index // block_steps % len(OVERHEAD_PATTERN)]
        if index % block_steps == 0:
            recorder.set_enabled(label == "on")
        overhead.append(LabelledStep(label, runner.run()))
        if on_step:
            on_step(steps + index + 1)
    if overhead_steps:
        recorder.set_enabled(True)
    return LoopResult(step_ns, losses, step_samples, duration_ns, overhead)


class _Steps:
    """Runs single steps and keeps what they gave."""

    def __init__(self, trainee: Trainee, ddp: nn.Module, recorder: StepRecorder) -> None:
        self.losses: list[float] = []
        self.step_samples: list[int] = []
        self._trainee = trainee
        self._ddp = ddp
        self._recorder = recorder
        self._batches = _endless(trainee)

    def only_whole_batches(self) -> None:
        """From now on leave out an epoch's smaller last batch, so that all steps are equal."""
        whole, batches = max(self.step_samples), self._batches
        self._batches = (batch for batch in batches if batch.samples == whole)

    def run(self) -> int:
        """One step; its wall time in ns."""
        trainee, recorder = self._trainee, self._recorder
        begin_ns = time.monotonic_ns()
        with recorder.phase("data"):
            batch = next(self._batches)
        with recorder.phase("forward"):
            loss = trainee.forward(self._ddp, batch)
        with recorder.phase("backward"):
            trainee.backward(loss)
        with recorder.phase("optimizer"):
            trainee.update()
        self.losses.append(loss.item())
        self.step_samples.append(batch.samples)
        recorder.step()
        return time.monotonic_ns() - begin_ns


def _endless(trainee: Trainee) -> Iterator[Any]:
    for epoch in itertools.count():
        yield from trainee.batches(epoch)
