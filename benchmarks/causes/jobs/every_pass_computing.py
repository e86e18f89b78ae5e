"""All gradients are exchanged after each of three micro batches; the layers compute."""

import contextlib

import common
import torch
from torch.nn.parallel import DistributedDataParallel

common.begin()
ddp = DistributedDataParallel(common.computing(4, 512), gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for _ in common.steps():
    for micro in range(3):
        alone = common.FIXED and micro < 2
        with ddp.no_sync() if alone else contextlib.nullcontext():
            ddp(torch.randn(256, 512)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
