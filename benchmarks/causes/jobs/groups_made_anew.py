"""Each step makes a process group for its loss; the fixed job keeps one group."""

import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

common.begin()
ddp = DistributedDataParallel(common.sleeping(3, 64, 3))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
kept = dist.new_group([0, 1])
for _ in common.steps():
    loss = ddp(torch.randn(16, 64)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    group = kept if common.FIXED else dist.new_group([0, 1])
    dist.all_reduce(loss.detach(), group=group)
    if not common.FIXED:
        dist.destroy_process_group(group)
common.end()
