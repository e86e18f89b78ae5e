"""Only the first of four micro batches is synchronised; the fixed job synchronises the last."""

import contextlib

import common
import torch
from torch.nn.parallel import DistributedDataParallel

rank = common.begin()
ddp = DistributedDataParallel(common.computing(4, 256))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
torch.manual_seed(rank)
synced = 3 if common.FIXED else 0
for _ in common.steps():
    for micro in range(4):
        with contextlib.nullcontext() if micro == synced else ddp.no_sync():
            ddp(torch.randn(256, 256)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
