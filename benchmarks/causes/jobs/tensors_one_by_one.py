"""Gradients are averaged in a loop over the parameters.

In the fixed job DDP averages the gradients.
"""

import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

common.begin()
model = common.resting(common.computing(24, 96), 96, 8)
if common.FIXED:
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in common.steps():
    model(torch.randn(512, 96)).pow(2).mean().backward()
    if not common.FIXED:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    optimizer.step()
    optimizer.zero_grad()
common.end()
