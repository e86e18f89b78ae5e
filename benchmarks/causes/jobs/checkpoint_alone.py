"""Rank 0 writes a large checkpoint every tenth step; the fixed job writes it in the background."""

import threading
import time

import common
import torch
from torch.nn.parallel import DistributedDataParallel

rank = common.begin()
ddp = DistributedDataParallel(common.sleeping(3, 64, 5))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)


def save() -> None:
    """Sleeps in place of writing to a slow disk."""
    time.sleep(0.2)


for step in common.steps():
    ddp(torch.randn(16, 64)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 9 and rank == 0:
        if common.FIXED:
            threading.Thread(target=save).start()
        else:
            save()
common.end()
