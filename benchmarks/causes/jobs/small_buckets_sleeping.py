"""Buckets of ten kilobytes between layers that sleep."""

import common
import torch
from torch.nn.parallel import DistributedDataParallel

common.begin()
cap = {} if common.FIXED else {"bucket_cap_mb": 0.01}
ddp = DistributedDataParallel(common.sleeping(24, 64, 0.2), **cap)
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for _ in common.steps():
    ddp(torch.randn(16, 64)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
