"""In every pass DDP searches for unused parameters, although all parameters are used."""

import common
import torch
from torch.nn.parallel import DistributedDataParallel

common.begin()
ddp = DistributedDataParallel(common.computing(120, 48), find_unused_parameters=not common.FIXED)
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for _ in common.steps():
    ddp(torch.randn(128, 48)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
