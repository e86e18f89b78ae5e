"""Rank 0 writes a large checkpoint every tenth step; in the twin each rank writes its half."""

import time

import common
import torch
from torch.nn.parallel import DistributedDataParallel

rank = common.begin()
ddp = DistributedDataParallel(common.sleeping(3, 64, 5))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)


def save(seconds: float) -> None:
    """Saves as slowly as on a slow disk."""
    time.sleep(seconds)


for step in common.steps():
    ddp(torch.randn(16, 64)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 9 and (rank == 0 or common.FIXED):
        save(0.1 if common.FIXED else 0.2)
common.end()
