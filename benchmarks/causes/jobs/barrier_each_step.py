"""Each step begins and ends with a barrier, which was once needed to measure times."""

import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

common.begin()
ddp = DistributedDataParallel(common.resting(common.computing(6, 192), 192, 4))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for _ in common.steps():
    if not common.FIXED:
        dist.barrier()
    ddp(torch.randn(512, 192)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if not common.FIXED:
        dist.barrier()
common.end()
