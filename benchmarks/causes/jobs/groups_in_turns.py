"""Tensors are reduced over two groups in turns, and a wait follows each all-reduce.

The fixed job waits only after the last all-reduce.
"""

import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

common.begin()
groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
ddp = DistributedDataParallel(common.sleeping(3, 64, 5))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for _ in common.steps():
    ddp(torch.randn(16, 64)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    values = [torch.ones(200_000) for _ in range(8)]
    works = []
    for number, value in enumerate(values):
        work = dist.all_reduce(value, group=groups[number % 2], async_op=True)
        if common.FIXED:
            works.append(work)
        else:
            work.wait()
    for work in works:
        work.wait()
common.end()
