"""In every sixth step rank 0 evaluates alone; in the fixed job each rank evaluates half."""

import common
import torch
from torch.nn.parallel import DistributedDataParallel

rank = common.begin()
ddp = DistributedDataParallel(common.resting(common.computing(6, 256), 256, 6))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for step in common.steps():
    ddp(torch.randn(1024, 256)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 6 == 5:
        with torch.no_grad():
            for _ in range(20 if common.FIXED else 40 * (rank == 0)):
                ddp.module[0](torch.randn(1024, 256))
common.end()
