"""The script calls the inner model, so that DDP exchanges nothing."""

import common
import torch
from torch.nn.parallel import DistributedDataParallel

common.begin()
ddp = DistributedDataParallel(common.computing(4, 256))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
model = ddp if common.FIXED else ddp.module
for _ in common.steps():
    model(torch.randn(512, 256)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
