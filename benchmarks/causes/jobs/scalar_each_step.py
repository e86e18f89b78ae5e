"""A flag is reduced in every step, though weights are averaged in every tenth step only.

The fixed job reduces the flag only in the steps that average the weights.
"""

import random

import common
import torch
import torch.distributed as dist
from torch import nn

rank = common.begin()
chance = random.Random(rank)
model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
goes_on = torch.ones(1)
for step in common.steps():
    x = common.Sleep.apply(torch.randn(16, 64, requires_grad=True), chance.choice([2, 4, 8]))
    model(x).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    averages = step % 10 == 9
    if averages or not common.FIXED:
        dist.all_reduce(goes_on, op=dist.ReduceOp.MIN)
        assert goes_on.item() == 1
    if averages:
        with torch.no_grad():
            for parameter in model.parameters():
                dist.all_reduce(parameter)
                parameter.div_(dist.get_world_size())
common.end()
