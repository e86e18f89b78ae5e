"""FSDP2 shards a stack of blocks as one unit; the fixed job shards each block."""

import common
import torch
from torch.distributed.fsdp import fully_shard

common.begin()
model = common.sleeping(8, 768, 2)
if common.FIXED:
    for block in model:
        fully_shard(block, reshard_after_forward=False)
fully_shard(model, reshard_after_forward=False)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in common.steps():
    model(torch.randn(8, 768)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
