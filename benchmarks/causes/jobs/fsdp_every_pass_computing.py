"""FSDP2 reduces gradients after each of three micro batches; the layers compute."""

import common
import torch
from torch.distributed.fsdp import fully_shard

common.begin()
model = common.computing(4, 512)
for number in range(0, len(model), 2):
    fully_shard(model[number], reshard_after_forward=False)
fully_shard(model, reshard_after_forward=False)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in common.steps():
    for micro in range(3):
        model.set_reshard_after_backward(micro == 2)  # otherwise each forward gathers
        if common.FIXED:
            model.set_requires_gradient_sync(micro == 2)
        model(torch.randn(256, 512)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
