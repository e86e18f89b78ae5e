"""A model that fits into memory is gathered again in backward."""

import common
import torch
from torch.distributed.fsdp import fully_shard

common.begin()
model = common.computing(6, 1024)
for block in model:
    if list(block.parameters()):
        fully_shard(block, reshard_after_forward=not common.FIXED)
fully_shard(model, reshard_after_forward=not common.FIXED)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in common.steps():
    model(torch.randn(4, 1024)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
