"""The norms of the gradients are reduced one by one; the fixed job reduces them as one tensor."""

import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

common.begin()
ddp = DistributedDataParallel(common.resting(common.computing(12, 96), 96, 14))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for _ in common.steps():
    ddp(torch.randn(1024, 96)).pow(2).mean().backward()
    norms = [parameter.grad.norm().pow(2) for parameter in ddp.parameters()]
    if common.FIXED:
        stacked = torch.stack(norms)
        dist.all_reduce(stacked)
        total = stacked.sum().item()
    else:
        total = 0.0
        for norm in norms:
            dist.all_reduce(norm)
            total += norm.item()
    optimizer.step()
    optimizer.zero_grad()
common.end()
