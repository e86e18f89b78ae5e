"""FSDP2 shards every linear layer of a small model as a unit.

The fixed job shards blocks of eight layers.
"""

import common
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

common.begin()
layers = [nn.Sequential(nn.Linear(96, 96), nn.ReLU()) for _ in range(24)]
blocks = [nn.Sequential(*layers[first : first + 8]) for first in range(0, 24, 8)]
model = nn.Sequential(*blocks)
for unit in blocks if common.FIXED else layers:
    fully_shard(unit, reshard_after_forward=False)
fully_shard(model, reshard_after_forward=False)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in common.steps():
    model(torch.randn(512, 96)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
