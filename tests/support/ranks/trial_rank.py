"""Usage: ``python -m tests.support.ranks.trial_rank ddp|fsdp|hsdp DIRECTORY PLAN...``."""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import commprof
from commprof.tune.trials.plan import SETTLE_STEPS, parse_trial

DECLARED, FOUND = "declared", "found"


class Training:
    def __init__(self, kind: str) -> None:
        torch.manual_seed(7)
        np.random.seed(8)
        random.seed(9)
        model = nn.Sequential(
            *(nn.Linear(24, 48), nn.BatchNorm1d(48), nn.Dropout(0.2)),
            *(nn.ReLU(), nn.Linear(48, 48), nn.Linear(48, 3)),
        )
        self.model = model if kind != "ddp" else DistributedDataParallel(model)
        if kind != "ddp":
            _shard(model, kind)
        averaged = model if kind == "ddp" else nn.Linear(1, 1)  # sharded models cannot be copied
        self.average = torch.optim.swa_utils.AveragedModel(averaged)
        self.averaged = averaged
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=50)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=7)
        self.losses: list[float] = []

    def step(self, number: int, end: Callable[[], None]) -> None:
        generator = torch.Generator().manual_seed(1000 * dist.get_rank() + number)
        noise = float(np.random.normal()) + random.random()
        batch = torch.randn(12, 24, generator=generator) + 0.01 * noise
        loss = self.model(batch).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.average.update_parameters(self.averaged)
        self.optimizer.zero_grad(set_to_none=number % 2 == 0)
        self.losses.append(float(loss))
        end()

    def digest(self) -> dict[str, str]:
        optimizer = self.optimizer.state_dict()
        return {
            "model": _hash(self.model.state_dict()),
            "average": _hash(self.average.state_dict()),
            "optimizer": _hash(optimizer["state"]) + str(optimizer["param_groups"]),
            "schedule": str(self.schedule.state_dict()),
            "scaler": str(self.scaler.state_dict()),
            "torch": _hash({"state": torch.get_rng_state()}),
            "numpy": str(np.random.get_state()[2]) + _hash({"state": np.random.get_state()[1]}),
            "python": hashlib.sha256(str(random.getstate()).encode()).hexdigest(),
        }


def _shard(model: nn.Sequential, kind: str) -> None:
    ranks = dist.get_world_size()
    names = ("copies", "shards")
    if kind == "hsdp":
        mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=names)
    else:
        mesh = init_device_mesh("cpu", (ranks,))
    for block in (model[0], model[4], model):
        fully_shard(block, mesh=mesh)


def _hash(value: Any) -> str:
    digest = hashlib.sha256()
    for item in _leaves(value):
        tensor = torch.as_tensor(item.to_local() if isinstance(item, DTensor) else item)
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for key in sorted(value, key=str) for leaf in _leaves(value[key])]
    return [value]


def untouched(kind: str, steps: list[int]) -> dict[str, str]:
    training = Training(kind)
    for number in steps:
        training.step(number, _nothing)
    return training.digest()


def tried(kind: str, directory: Path, plan: str, steps: int, how: str) -> dict[str, str]:
    training = Training(kind)
    with commprof.profile(directory, find_steps=how == FOUND) as prof:
        trial = commprof.trial(training.model, plan)
        for number in range(steps):
            training.step(number, prof.step if how == DECLARED else _nothing)
    assert trial.done
    return training.digest()


def _nothing() -> None:
    pass


def kept_steps(plan: str, steps: int, world_size: int) -> list[int]:
    """A trial undoes only the steps whose candidate changes gradients."""
    parsed = parse_trial(plan)
    taken_back = {
        SETTLE_STEPS + step
        for block in parsed.schedule().blocks
        if not parsed.everyone[block.candidate].exact(world_size)
        for step in range(block.begin, block.end)
    }
    return [step for step in range(steps) if step not in taken_back]


def compared(kind: str, directory: Path, plan: str) -> dict[str, dict[str, str]]:
    steps = parse_trial(plan).steps + 4
    return {
        "untouched": untouched(kind, kept_steps(plan, steps, dist.get_world_size())),
        "declared": tried(kind, directory / "declared", plan, steps, DECLARED),
        "found": tried(kind, directory / "found", plan, steps, FOUND),
    }


def main() -> None:
    kind, directory, *plans = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    print(json.dumps([compared(kind, Path(directory, str(i)), p) for i, p in enumerate(plans)]))
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.05)  # torch 2.13's gloo threads may abort a process that ends at once


if __name__ == "__main__":
    main()
