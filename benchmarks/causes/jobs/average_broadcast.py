"""A moving average of the weights is broadcast in every step.

The fixed job does not broadcast the average.
"""

import copy

import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

common.begin()
ddp = DistributedDataParallel(common.resting(common.computing(12, 192), 192, 8))
average = copy.deepcopy(ddp.module)
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for _ in common.steps():
    ddp(torch.randn(256, 192)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for mean, parameter in zip(average.parameters(), ddp.parameters(), strict=True):
            mean.lerp_(parameter, 0.001)
            if not common.FIXED:
                dist.broadcast(mean, src=0)
common.end()
