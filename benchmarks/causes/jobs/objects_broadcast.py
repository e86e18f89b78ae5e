"""Rank 0 sends its schedule as a pickled list in every step; the fixed job sends a tensor."""

import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank = common.begin()
ddp = DistributedDataParallel(common.resting(common.computing(4, 128), 128, 8))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for step in common.steps():
    if common.FIXED:
        schedule = torch.tensor([float(step), 1e-3])
        dist.broadcast(schedule, src=0)
    else:
        listed = [{"step": step, "rate": 1e-3}, bytes(4_000_000)] if rank == 0 else [None, None]
        dist.broadcast_object_list(listed, src=0)
    ddp(torch.randn(1024, 128)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
