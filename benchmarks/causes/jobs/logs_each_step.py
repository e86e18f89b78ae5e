"""Rank 0 writes histograms of all weights in every step; the fixed job, in every hundredth step."""

import time

import common
import torch
from torch.nn.parallel import DistributedDataParallel

rank = common.begin()
ddp = DistributedDataParallel(common.sleeping(3, 64, 4))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)


def log() -> None:
    """Computes histograms, and sleeps in place of writing a file."""
    for parameter in ddp.parameters():
        parameter.detach().histc(64)
        time.sleep(0.003)


for step in common.steps():
    ddp(torch.randn(16, 64)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0 and step % (100 if common.FIXED else 1) == 0:
        log()
common.end()
