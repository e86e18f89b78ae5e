"""The loss for the log is reduced in every micro batch.

The fixed job reduces the sum of these losses once per step.
"""

import contextlib

import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

common.begin()
ddp = DistributedDataParallel(common.sleeping(2, 64, 1.5))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
PASSES = 8
for _ in common.steps():
    shown = torch.zeros(1)
    for number in range(PASSES):
        with contextlib.nullcontext() if number == PASSES - 1 else ddp.no_sync():
            loss = ddp(torch.randn(16, 64)).pow(2).mean()
            reported = loss.detach().clone()
            if not common.FIXED:
                dist.all_reduce(reported)
            shown += reported
            (loss / PASSES).backward()
    if common.FIXED:
        dist.all_reduce(shown)
    logged = shown.item()
    optimizer.step()
    optimizer.zero_grad()
common.end()
