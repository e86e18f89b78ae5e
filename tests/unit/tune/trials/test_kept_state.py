from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from commprof.tune.trials.live.state import Snapshot, Trainables


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


class Training:
    def __init__(self, optimizer: Callable[..., torch.optim.Optimizer]) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        self.optimizer = optimizer(self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=0.1, total_steps=50
        )
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
        self.counter = Counter()

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)
        loss = self.model(torch.randn(6, 4) + np.random.normal() + random.random()).sum()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.average.update_parameters(self.model)
        self.counter.count += 1

    def everything(self) -> dict[str, Any]:
        gradients = [p.grad for p in self.model.parameters()]
        return {
            "model": _bytes(self.model.state_dict()),
            "average": _bytes(self.average.state_dict()),
            "gradients": [None if g is None else g.numpy().tobytes() for g in gradients],
            "state": {i: _bytes(s) for i, s in self.optimizer.state_dict()["state"].items()},
            "groups": str(self.optimizer.state_dict()["param_groups"]),
            "schedule": str(self.schedule.state_dict()),
            "scaler": str(self.scaler.state_dict()),
            "counter": self.counter.count,
            "torch": torch.get_rng_state().numpy().tobytes(),
            "numpy": str(np.random.get_state()[2]),
            "python": random.getstate(),
        }


def _bytes(state: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.numpy().tobytes() if isinstance(value, torch.Tensor) else value
        for key, value in state.items()
    }


OPTIMIZERS = [
    lambda p: torch.optim.AdamW(p, lr=0.01),
    lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    lambda p: torch.optim.LBFGS(p, lr=0.01, max_iter=2),
]


@pytest.mark.parametrize("steps_before", [0, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS[:2])
def test_every_kind_of_training_state_is_restored(
    optimizer: Callable[..., torch.optim.Optimizer], steps_before: int
) -> None:
    training = Training(optimizer)
    for _ in range(steps_before):
        training.step()
    before = training.everything()
    places = [p.data_ptr() for p in training.model.parameters()]
    snapshot = Trainables([training.counter]).keep()
    for _ in range(2):
        training.step()
    after = training.everything()
    assert [kind for kind in before if before[kind] == after[kind]] == []
    snapshot.restore()
    assert training.everything() == before
    assert [p.data_ptr() for p in training.model.parameters()] == places


def test_training_after_a_restored_snapshot_equals_uninterrupted_training() -> None:
    ends = []
    for detour in (False, True):
        random.seed(1)
        np.random.seed(2)
        training = Training(OPTIMIZERS[0])
        training.step()
        if detour:
            snapshot = Trainables([training.counter]).keep()
            training.step()
            snapshot.restore()
        training.step()
        training.step()
        ends.append(training.everything())
    assert ends[0] == ends[1]


def test_optimizer_state_that_is_no_tensor_is_restored() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = OPTIMIZERS[2]([weight])

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (weight * torch.tensor([1.0, 2.0, 3.0])).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    before = str(optimizer.state_dict())
    trainables = Trainables()
    trainables.optimizers = [optimizer]
    snapshot = Snapshot(trainables)
    optimizer.step(closure)
    assert str(optimizer.state_dict()) != before
    snapshot.restore()
    assert str(optimizer.state_dict()) == before
