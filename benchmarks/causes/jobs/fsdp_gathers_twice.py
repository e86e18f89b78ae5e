"""A small model is gathered in forward and again in backward; the fixed job keeps it gathered."""

import common
import torch
from torch.distributed.fsdp import fully_shard

common.begin()
model = common.sleeping(6, 768, 1)
for block in model:
    fully_shard(block, reshard_after_forward=not common.FIXED)
fully_shard(model, reshard_after_forward=False)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in common.steps():
    model(torch.randn(8, 768)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
