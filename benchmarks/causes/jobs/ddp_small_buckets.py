"""Buckets of a tenth of a megabyte: one all-reduce for each layer."""

import common
import torch
from torch.nn.parallel import DistributedDataParallel

common.begin()
cap = {} if common.FIXED else {"bucket_cap_mb": 0.1}
ddp = DistributedDataParallel(common.computing(40, 160), **cap)
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for _ in common.steps():
    ddp(torch.randn(16, 160)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
