"""DDP's buckets are so small that every one or two layers have an all-reduce."""

import common
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

common.begin()
model = nn.Sequential(
    common.computing(14, 160),
    nn.Linear(160, 320),
    common.computing(3, 320),
    nn.Linear(320, 160),
    common.computing(14, 160),
)
cap = {} if common.FIXED else {"bucket_cap_mb": 0.1}
ddp = DistributedDataParallel(common.resting(model, 160, 5), **cap)
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for _ in common.steps():
    ddp(torch.randn(256, 160)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
