"""Each block of a model is a DDP model of its own; the fixed job wraps the whole model."""

import common
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

common.begin()
blocks: list[nn.Module] = [
    nn.Sequential(common.Slept(64, 0.4), nn.Linear(64, hidden), nn.Linear(hidden, 64))
    for hidden in (32, 64, 128, 256) * 4
]
if common.FIXED:
    model: nn.Module = DistributedDataParallel(nn.Sequential(*blocks))
else:
    model = nn.Sequential(*map(DistributedDataParallel, blocks))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in common.steps():
    model(torch.randn(16, 64)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
