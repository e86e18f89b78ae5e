"""DDP's buckets are very small, and the layers sleep."""

import common
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

common.begin()
blocks = []
for hidden in (32, 64, 128, 256) * 3:
    blocks += [common.sleeping(1, 64, 0.8), nn.Linear(64, hidden), nn.Linear(hidden, 64)]
cap = {} if common.FIXED else {"bucket_cap_mb": 0.01}
ddp = DistributedDataParallel(nn.Sequential(*blocks), **cap)
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for _ in common.steps():
    ddp(torch.randn(16, 64)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
