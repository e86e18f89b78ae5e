"""In every step rank 0 writes a line to a log, and then all ranks wait at barriers."""

import os

import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank = common.begin()
ddp = DistributedDataParallel(common.sleeping(2, 64, 4))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
with open(os.devnull, "w") as log:
    for step in common.steps():
        loss = ddp(torch.randn(16, 64)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            log.write(f"{step} {loss.item()}\n")
        if not common.FIXED:
            dist.barrier()
            dist.barrier()
common.end()
