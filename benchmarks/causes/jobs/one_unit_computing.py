"""FSDP2 shards a stack of layers that compute as one unit; the fixed job shards pairs of layers."""

import common
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

common.begin()
model = nn.Sequential(*(common.computing(2, 384) for _ in range(4)))
if common.FIXED:
    for block in model:
        fully_shard(block, reshard_after_forward=False)
fully_shard(model, reshard_after_forward=False)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in common.steps():
    model(torch.randn(256, 384)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
