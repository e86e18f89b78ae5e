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
        names |= training()
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
        # The models must go first: a reducer that destroys its process group joins gloo's threads
        # while it holds the GIL, and such a thread may wait for the GIL.
        names.clear()
        dist.destroy_process_group()


class _Batches(list[tuple[torch.Tensor, torch.Tensor]]):
    """The pause per batch makes the run long enough for a summary."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for batch in super().__iter__():
            time.sleep(0.05)
            yield batch


def training() -> dict[str, Any]:
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
