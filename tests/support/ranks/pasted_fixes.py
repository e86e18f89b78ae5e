from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

from commprof.analysis.causes.registry import CAUSES


class Samples(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index >= len(self):
            raise IndexError(index)
        return torch.zeros(4 + index), index


def model() -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)))


GATHERED = ("gathered-parameters", "gathered-gradients")


def wrapped(cause: str, flat: bool) -> nn.Module:
    """Returns the model that a fix expects; ``flat`` means FSDP1."""
    if flat and cause in ("fsdp-every-pass", "fsdp-gathers-each-pass", *GATHERED):
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(model(), device_id=torch.device("cpu"))
    is_sharded = cause.startswith("fsdp-") and cause not in ("fsdp-one-unit", "fsdp-small-units")
    if (is_sharded or cause in GATHERED) and not flat:
        from torch.distributed.fsdp import fully_shard

        whole = model()
        fully_shard(whole)
        return whole
    has_ddp = ("ddp-every-pass", "ddp-wrong-pass", "fewer-batches")
    has_ddp += ("rank-alone", "evaluated-by-all")
    return DistributedDataParallel(model()) if cause in has_ddp else model()


def names(cause: str, flat: bool, folder: str) -> dict[str, Any]:
    trained = wrapped(cause, flat)
    if cause == "gathered-gradients":
        trained(torch.ones(8, 4)).sum().backward()
    for parameter in trained.parameters():
        if cause == "tensors-one-by-one":
            parameter.grad = torch.ones_like(parameter)
    trains = ("fewer-batches", "epoch-not-set", "pass-each-step")
    return {
        "YOUR_MODEL": trained,
        "YOUR_BATCH": torch.ones(8, 4),
        "YOUR_TARGETS": torch.ones(8, 4),
        "YOUR_STAGE": PipelineStage(model(), 0, 1, torch.device("cpu")),
        "YOUR_MICRO_BATCHES": [torch.ones(2, 4)] * 2,
        "YOUR_LOSS": lambda output, target=None: output.sum(),
        "YOUR_OPTIMIZER": torch.optim.SGD(trained.parameters(), 0.1),
        "YOUR_METRICS": {"loss": torch.tensor(1.0), "right": torch.tensor(2)},
        "YOUR_NUMBERS": [1.0, 2.0],
        "YOUR_TENSOR": torch.ones(2),
        "YOUR_TENSORS": [torch.ones(2), torch.ones(3)],
        "YOUR_VALUES": [(torch.ones(2), None), (torch.ones(2), None)],
        "YOUR_DATA": Samples(),
        "YOUR_BATCH_SIZE": 2,
        "YOUR_LOADER": [torch.ones(2, 4)] * 2,
        "YOUR_STEP": 0 if cause not in trains else lambda net, batch: net(batch).sum(),
        "YOUR_STEPS": 3,
        "YOUR_EPOCH": 1,
        "YOUR_EPOCHS": 2,
        "YOUR_SAMPLER": DistributedSampler(Samples()),
        "YOUR_INTERVAL": 20,
        "YOUR_LIMIT": 1.0,
        "YOUR_WORK": lambda: None,
        "YOUR_EVALUATION": lambda net, loader: torch.tensor(float(len(loader))),
        "YOUR_FOLDER": folder,
        "YOUR_ROWS": 4,
        "YOUR_CHANNELS": 64,
        "YOUR_RANKS": [0],
        "YOUR_SEED": 7,
        "YOUR_LOG": lambda: None,
        "YOUR_WIDTH": 2,
        "YOUR_RIGHT_ANSWERS": 3,
        "YOUR_SAMPLES": 4,
        "YOUR_DEVICE": "cpu",
        "YOUR_OUTPUTS": [None],
        "YOUR_OBJECT": {"a": 1},
        "YOUR_AVERAGES": [getattr(p, "to_local", p.detach)().clone() for p in trained.parameters()],
        "YOUR_DECAY": 0.9,
        "YOUR_GENERATOR": model(),
        "YOUR_DISCRIMINATOR": model(),
    }


def main() -> None:
    torch.set_num_threads(1)
    environment = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        for cause in CAUSES:
            for flat, fix in enumerate(filter(None, (cause.fix, cause.fix_of_fsdp1))):
                store = dist.FileStore(os.path.join(folder, f"{cause.id}-{flat}"), 1)
                dist.init_process_group("gloo", store=store, rank=0, world_size=1)
                # .cuda() would fail here, because there is no GPU.
                text = fix.replace(".cuda()", ".clone()")
                scope = {"torch": torch, **names(cause.id, bool(flat), folder)}
                with contextlib.redirect_stdout(sys.stderr):
                    exec(compile(text, cause.id, "exec"), scope)
                print(cause.id + "-fsdp1" * flat, flush=True)
                dist.destroy_process_group()
                os.environ.clear()
                os.environ.update(environment)


if __name__ == "__main__":
    main()
