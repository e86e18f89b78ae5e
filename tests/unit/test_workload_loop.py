from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from commprof.workloads.loop import LoopResult, planned_steps, train


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


class FakeTrainee:
    """Epochs of two batches: 4 samples with loss 1, 2 samples with loss 4, plus the epoch."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.model: nn.Module = nn.Identity()

    def ddp_options(self) -> dict[str, Any]:
        return {}

    def batches(self, epoch: int) -> Iterator[Batch]:
        for samples, loss in ((4, 1.0), (2, 4.0)):
            self.calls.append("data")
            yield Batch(samples, loss + epoch)

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        self.calls.append("forward")
        assert model is self.model
        return torch.tensor(batch.loss)

    def backward(self, loss: Tensor) -> None:
        self.calls.append("backward")

    def update(self) -> None:
        self.calls.append("optimizer")

    def truth(self) -> dict[str, list[int]] | None:
        return None


def run(steps: int, **options: Any) -> tuple[LoopResult, list[str]]:
    calls: list[str] = []
    trainee = FakeTrainee(calls)
    return train(trainee, trainee.model, FakeRecorder(calls), steps, **options), calls


def test_a_step_is_four_phases_then_the_recorders_step() -> None:
    _, calls = run(1)

    phases = ("data", "forward", "backward", "optimizer")
    assert calls == [call for name in phases for call in (f"{name}<", name, f">{name}")] + ["step"]


def test_steps_run_over_as_many_epochs_as_needed() -> None:
    result, _ = run(5)

    assert result.losses == [1, 4, 2, 5, 3]
    assert result.step_samples == [4, 2, 4, 2, 4]
    assert len(result.step_ns) == 5
    assert sum(result.step_ns) <= result.duration_ns
    assert result.overhead == []


def test_overhead_block_repeats_its_pattern_and_leaves_capture_on() -> None:
    result, calls = run(2, overhead_steps=6)

    assert [s.label for s in result.overhead] == ["off_a", "on", "off_b", "on", "off_a", "on"]
    switches = [call for call in calls if call in ("on", "off", "step")]
    pattern = ["off", "step", "on", "step"]
    assert switches == ["step", "step", *pattern * 3, "on"]
    assert all(step.duration_ns > 0 for step in result.overhead)


def test_overhead_block_of_several_steps_switches_once_per_block() -> None:
    result, calls = run(1, overhead_steps=5, block_steps=2)

    assert [s.label for s in result.overhead] == ["off_a", "off_a", "on", "on", "off_b"]
    assert [call for call in calls if call in ("on", "off")] == ["off", "on", "off", "on"]


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
def test_planned_steps(per_epoch: int, steps: int | None, epochs: int | None, planned: int) -> None:
    assert planned_steps(per_epoch, steps, epochs) == planned
