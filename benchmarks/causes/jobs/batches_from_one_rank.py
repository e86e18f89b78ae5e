"""Rank 0 reads the samples of all ranks, and broadcasts the samples before each forward pass."""

import time

import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank = common.begin()
ranks = dist.get_world_size()
model = DistributedDataParallel(common.sleeping(4, 256, 2))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
READ_MS = 8.0
for _ in common.steps():
    if common.FIXED:
        time.sleep(READ_MS / 1e3)
        batch = torch.randn(128, 256)
    else:
        whole = torch.empty(ranks * 128, 256)
        if rank == 0:
            time.sleep(ranks * READ_MS / 1e3)
            whole.normal_()
        dist.broadcast(whole, 0)
        batch = whole.chunk(ranks)[rank]
    model(batch).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
