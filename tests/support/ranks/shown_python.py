"""Runs the pages' blocks of Python on two ranks.

A block may use the objects that a user has at that point: a model, its data, an optimizer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import commprof
from tests.support.builders.run_directories import ranks_of, write_run


def run_block(path: str) -> None:
    """Runs the file in a new directory next to it, in the middle of training."""
    source = Path(path)
    directory = source.with_suffix("")
    directory.mkdir(exist_ok=True)
    os.chdir(directory)
    text = source.read_text()
    logged: list[dict[str, float]] = []
    tracker = SimpleNamespace(log=lambda figures, step: logged.append(figures))
    names: dict[str, Any] = {"torch": torch, "commprof": commprof, "wandb": tracker}
    if "init_process_group" not in text:
        dist.init_process_group("gloo")
        names |= training() | of_fixes(text)
    if "commprof.load(" in text:
        if dist.get_rank() == 0:
            write_run(Path("RUN"), ranks_of(2, 9))
        dist.barrier()
    exec(compile(text, str(source), "exec"), names)
    if "wandb.log" in text:
        assert any(name.startswith("commprof/") for figures in logged for name in figures), logged
    if dist.is_initialized():
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == dist.get_world_size()
        # A reducer that is the last to hold its process group joins gloo's threads while it holds
        # the GIL, for which one of these threads may wait in order to release a tensor.
        names.clear()
        dist.destroy_process_group()


class _Batches(list[tuple[torch.Tensor, torch.Tensor]]):
    """Batches that arrive slowly, so that the run is long enough for a summary."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for batch in super().__iter__():
            time.sleep(0.05)
            yield batch


class _Layers(nn.Module):
    """A model of two blocks, as ``model.layers``."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.backbone = self.layers[0]

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            values = layer(values)
        return values


def of_fixes(text: str) -> dict[str, Any]:
    """Returns what the fixes of docs/causes.md use besides; ``model`` is what the block expects."""
    torch.manual_seed(0)
    model: nn.Module = _Layers()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    validation = torch.utils.data.TensorDataset(torch.randn(8, 8))
    names: dict[str, Any] = {
        "DistributedDataParallel": DistributedDataParallel,
        "batch": torch.randn(4, 8),
        "micro_batches": [torch.randn(4, 8) for _ in range(3)],
        "loss_of": lambda output: output.square().mean(),
        "metrics": {"loss": torch.tensor(1.0), "accuracy": torch.tensor(0.5)},
        **{"loss": 1.0, "accuracy": 0.5, "count": 4, "device": "cpu"},
        **{"dataset": validation, "validation_set": validation, "batch_size": 4},
        **{"rows": 16, "width": 8},
        "value": torch.ones(1),
        "values": [(torch.ones(1), dist.group.WORLD) for _ in range(2)],
        "train": lambda model, batch: model(batch[0]).sum().backward(),
        "evaluate": lambda model, loader: sum(model(part).sum().detach() for (part,) in loader),
    }
    if "set_requires_gradient_sync" in text or "set_separate_reduce_scatter_group" in text:
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(_Layers())
    elif any(word in text for word in ("no_sync()", "evaluate(model.module", "Join([model])")):
        model = DistributedDataParallel(model)
    of_model = ("fully_shard", "set_requires", "no_sync()", "model.module", "grads", "_buffers=")
    of_wrapper = ("find_unused_parameters=", "bucket_cap_mb=25", "Join([model])")
    of_model += ("model.backbone", "set_separate", "FullyShardedDataParallel")
    is_fix = any(word in text for word in of_model + of_wrapper)
    return {**names, "model": model} if is_fix else names


def training() -> dict[str, Any]:
    """Returns the training's objects, under the names that the pages use."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    ddp = DistributedDataParallel(model)
    return {
        "model": model,
        "ddp": ddp,
        "optimizer": torch.optim.SGD(ddp.parameters(), lr=0.1),
        "loss_function": nn.functional.cross_entropy,
        "loader": _Batches((torch.randn(4, 8), torch.randint(0, 4, (4,))) for _ in range(12)),
        "step": 500,
    }
