"""FSDP2 gathers all units again in each of four micro batches."""

import common
import torch
from torch.distributed.fsdp import fully_shard

common.begin()
model = common.sleeping(6, 384, 1)
for block in model:
    fully_shard(block, reshard_after_forward=False)
fully_shard(model, reshard_after_forward=False)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in common.steps():
    for micro in range(4):
        model.set_requires_gradient_sync(micro == 3)
        if common.FIXED:
            model.set_reshard_after_backward(micro == 3)
        model(torch.randn(8, 384)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
