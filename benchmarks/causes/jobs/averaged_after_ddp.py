"""Gradients that DDP has averaged are averaged again after backward.

In the fixed job only DDP averages gradients.
"""

import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

common.begin()
ddp = DistributedDataParallel(common.resting(common.computing(12, 192), 192, 8))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)


def average_gradients() -> None:
    for parameter in ddp.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


for _ in common.steps():
    ddp(torch.randn(256, 192)).pow(2).mean().backward()
    if not common.FIXED:
        average_gradients()
    optimizer.step()
    optimizer.zero_grad()
common.end()
