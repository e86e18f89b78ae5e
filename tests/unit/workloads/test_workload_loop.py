from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from commprof.workloads.loop import LoopResult, overhead_states, planned_steps, train


@dataclass(frozen=True)
class Batch:
    samples: int
    loss: float


class FakeRecorder:
    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.calls.append(f"{name}<")
        yield
        self.calls.append(f">{name}")

    def step(self) -> None:
        self.calls.append("step")

    def set_enabled(self, on: bool) -> None:
        self.calls.append("on" if on else "off")


class FakeTraining:
    def __init__(self, calls: list[str], accumulate: int = 1) -> None:
        self.calls = calls
        self.accumulate = accumulate
        self.weights: list[float] = []

    def batches(self, epoch: int) -> Iterator[tuple[Batch, ...]]:
        batches = [Batch(samples, loss + epoch) for samples, loss in ((4, 1.0), (2, 4.0))]
        for first in range(0, 2, self.accumulate):
            self.calls.append("data")
            yield tuple(batches[first : first + self.accumulate])

    @contextmanager
    def synchronised(self, last: bool) -> Iterator[None]:
        self.calls.append("sync<" if last else "keep<")
        yield
        self.calls.append(">sync" if last else ">keep")

    def forward(self, batch: Any) -> Tensor:
        self.calls.append("forward")
        return torch.tensor(batch.loss)

    def backward(self, loss: Tensor, weight: float) -> None:
        self.calls.append("backward")
        self.weights.append(weight)

    def update(self) -> None:
        self.calls.append("optimizer")


def run(steps: int, **options: Any) -> tuple[LoopResult, list[str]]:
    calls: list[str] = []
    return train(FakeTraining(calls), FakeRecorder(calls), steps, **options), calls


def phase(name: str) -> list[str]:
    return [f"{name}<", name, f">{name}"]


def test_a_step_has_four_phases_and_then_marks_the_step() -> None:
    _, calls = run(1)

    passes = ["sync<", *phase("forward"), *phase("backward"), ">sync"]
    assert calls == [*phase("data"), *passes, *phase("optimizer"), "step"]


def test_an_accumulating_step_synchronises_its_last_pass_only() -> None:
    calls: list[str] = []
    training = FakeTraining(calls, accumulate=2)
    result = train(training, FakeRecorder(calls), 2)

    once = [*phase("forward"), *phase("backward")]
    passes = ["keep<", *once, ">keep", "sync<", *once, ">sync"]
    assert calls == [*phase("data"), *passes, *phase("optimizer"), "step"] * 2
    # The mean loss of epoch 0 is (4 * 1 + 2 * 4) / 6 = 2; epoch 1 adds 1.
    assert training.weights == pytest.approx([2 / 3, 1 / 3] * 2)
    assert result.losses == pytest.approx([2, 3])
    assert result.step_samples == [6, 6]


def test_steps_run_over_as_many_epochs_as_needed() -> None:
    result, _ = run(5)

    assert result.losses == [1, 4, 2, 5, 3]
    assert result.step_samples == [4, 2, 4, 2, 4]
    assert len(result.step_ns) == 5
    assert sum(result.step_ns) <= result.duration_ns
    assert result.overhead == []


@pytest.mark.parametrize("steps", [0, 1, 18, 400])
def test_capture_is_on_in_a_random_one_of_each_two_overhead_steps(steps: int) -> None:
    states = overhead_states(steps, "a run")
    assert states == overhead_states(steps, "a run")
    assert len(states) == steps
    pairs = list(zip(states[::2], states[1::2], strict=False))
    assert all(pair.count("on") == 1 for pair in pairs)
    offs = [state for state in states if state != "on"]
    assert all({*two} == {"off_a", "off_b"} for two in zip(offs[::2], offs[1::2], strict=False))
    if steps == 400:  # bounds are 5 standard deviations of 200 and 100 coin tosses
        assert 65 <= sum(first == "on" for first, _ in pairs) <= 135
        assert 25 <= offs[::2].count("off_a") <= 75
        assert states != overhead_states(steps, "another run")


def test_overhead_block_leaves_capture_on() -> None:
    result, calls = run(2, overhead_steps=18)

    labels = [s.label for s in result.overhead]
    assert labels == overhead_states(18, "")
    switches = [call for call in calls if call in ("on", "off", "step")]
    states = [word for label in labels for word in ("on" if label == "on" else "off", "step")]
    assert switches == ["step", "step", *states, "on"]
    assert all(step.duration_ns > 0 < step.cpu_ns for step in result.overhead)


def test_overhead_block_does_not_enter_the_results() -> None:
    result, _ = run(2, overhead_steps=4)

    assert result.losses == [1, 4]
    assert result.step_samples == [4, 2]
    assert sum(result.step_ns) <= result.duration_ns


def test_progress_counts_all_steps() -> None:
    done: list[int] = []
    run(3, overhead_steps=2, on_step=done.append)

    assert done == [1, 2, 3, 4, 5]


def test_average_loss_weighs_the_last_epoch_by_samples() -> None:
    result, _ = run(4)

    assert result.average_loss(steps_per_epoch=2) == pytest.approx((4 * 2 + 2 * 5) / 6)
    assert result.average_loss(steps_per_epoch=100) == pytest.approx((4 + 8 + 8 + 10) / 12)


@pytest.mark.parametrize(
    ("per_epoch", "steps", "epochs", "planned"),
    [(20, None, None, 40), (3, None, None, 12), (20, 3, None, 3), (3, None, 2, 6)],
)
def test_planned_steps_follow_from_steps_epochs_or_defaults(
    per_epoch: int, steps: int | None, epochs: int | None, planned: int
) -> None:
    assert planned_steps(per_epoch, steps, epochs) == planned
