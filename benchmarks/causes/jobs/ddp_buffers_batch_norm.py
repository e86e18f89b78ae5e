"""In every forward pass DDP sends the statistics of many BatchNorm layers."""

import common
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

common.begin()
layers = []
for _ in range(60):
    layers += [nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()]
model = common.resting(nn.Sequential(*layers), 64, 5)
ddp = DistributedDataParallel(model, broadcast_buffers=not common.FIXED)
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for _ in common.steps():
    ddp(torch.randn(256, 64)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
