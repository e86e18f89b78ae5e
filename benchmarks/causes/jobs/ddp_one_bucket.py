"""A cap of 1,000 MiB makes one bucket of all gradients; the fixed job has DDP's default cap."""

import common
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

common.begin()
blocks = [nn.Sequential(nn.Linear(1024, 1024), common.Slept(1024, 8)) for _ in range(6)]
cap = {} if common.FIXED else {"bucket_cap_mb": 1000}
ddp = DistributedDataParallel(nn.Sequential(*blocks), **cap)
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for _ in common.steps():
    ddp(torch.randn(4, 1024)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
