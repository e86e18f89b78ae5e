from __future__ import annotations

import hashlib
import json
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import commprof
from commprof import _native

BUCKETS = (1, *[2] * 11)
"""Number of buckets in each step: DDP regroups its buckets after the first backward pass."""


def train(variant: str, directory: Path) -> str:
    torch.manual_seed(1)
    layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    ddp = DistributedDataParallel(layers, bucket_cap_mb=0.033)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    torch.manual_seed(100 + dist.get_rank())
    capture = nullcontext() if variant == "plain" else commprof.profile(directory)
    with capture as prof:
        if variant == "attached":
            commprof.attach(ddp)
        for _ in BUCKETS:
            optimizer.zero_grad()
            ddp(torch.randn(16, 64)).square().mean().backward()
            optimizer.step()
            if prof is not None:
                prof.step()
    found = hashlib.sha256()
    for parameter in ddp.parameters():
        assert parameter.grad is not None
        found.update(parameter.detach().numpy().tobytes())
        found.update(parameter.grad.numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    assert _native.native is None
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    root = Path(sys.argv[1])
    directories = {"plain": root, "captured": root / "captured", "attached": root}
    print(json.dumps({name: train(name, place) for name, place in directories.items()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
