"""FSDP2 reduces gradients after each of four micro batches."""

import common
import torch
from torch.distributed.fsdp import fully_shard

common.begin()
model = common.sleeping(6, 192, 1)
for block in model:
    fully_shard(block, reshard_after_forward=False)
fully_shard(model, reshard_after_forward=False)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in common.steps():
    for micro in range(4):
        model.set_reshard_after_backward(micro == 3)  # otherwise each forward gathers
        if common.FIXED:
            model.set_requires_gradient_sync(micro == 3)
        model(torch.randn(8, 192)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
