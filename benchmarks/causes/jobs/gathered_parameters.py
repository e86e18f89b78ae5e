"""After every step FSDP2's parameters are gathered for a moving average.

In the fixed job each rank averages its own shards.
"""

import common
import torch
from torch.distributed.fsdp import fully_shard

common.begin()
model = common.sleeping(4, 512, 2.0)
for block in model:
    fully_shard(block, reshard_after_forward=False)
fully_shard(model, reshard_after_forward=False)
optimizer = torch.optim.SGD(model.parameters(), 0.01)


def now(parameter):
    return parameter.detach().to_local() if common.FIXED else parameter.detach().full_tensor()


averages = [now(parameter).clone() for parameter in model.parameters()]
for _ in common.steps():
    model(torch.randn(8, 512)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    for average, parameter in zip(averages, model.parameters(), strict=True):
        average.lerp_(now(parameter), 0.001)
common.end()
