"""All gradients are exchanged after each of four micro batches."""

import contextlib

import common
import torch
from torch.nn.parallel import DistributedDataParallel

common.begin()
ddp = DistributedDataParallel(common.sleeping(6, 640, 1))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for _ in common.steps():
    for micro in range(4):
        alone = common.FIXED and micro < 3
        with ddp.no_sync() if alone else contextlib.nullcontext():
            ddp(torch.randn(8, 640)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
