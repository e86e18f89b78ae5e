"""Rank 1 has four batches fewer than rank 0, so DDP's join answers for rank 1 in the last steps.

In the fixed job both ranks have equally many batches.
"""

import common
import torch
from torch.nn.parallel import DistributedDataParallel

rank = common.begin()
ddp = DistributedDataParallel(common.computing(4, 128))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
fewer = 0 if common.FIXED else 4 * rank
with ddp.join():
    for _ in range(common.STEPS - fewer):
        ddp(torch.randn(1024, 128)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
common.end()
