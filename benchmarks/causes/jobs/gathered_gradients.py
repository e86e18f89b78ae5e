"""Every step gathers FSDP2's gradients to compute their norm.

The fixed job computes the norm from the shards.
"""

import common
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

common.begin()
model = common.sleeping(3, 512, 3)
for layer in model:
    fully_shard(layer)
fully_shard(model)
model.set_reshard_after_forward(False)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)


def clip(limit: float) -> None:
    """Scales the gradients if their norm is above the limit."""
    if common.FIXED:
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        return
    whole = [parameter.grad.full_tensor() for parameter in model.parameters()]
    norm = torch.stack([grad.norm() for grad in whole]).norm()
    for parameter in model.parameters():
        parameter.grad.mul_(min(1.0, limit / float(norm)))


for _ in common.steps():
    model(torch.randn(64, 512)).pow(2).mean().backward()
    clip(1.0)
    optimizer.step()
    optimizer.zero_grad()
common.end()
