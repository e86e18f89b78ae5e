"""In every eighth step rank 0 evaluates alone; in the fixed job each rank evaluates half."""

import common
import torch
from torch.nn.parallel import DistributedDataParallel

rank = common.begin()
ddp = DistributedDataParallel(common.sleeping(3, 64, 5))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for step in common.steps():
    ddp(torch.randn(16, 64)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 8 == 7:
        with torch.no_grad():
            for _ in range(10 if common.FIXED else 20 * (rank == 0)):
                ddp.module(torch.randn(16, 64))
common.end()
