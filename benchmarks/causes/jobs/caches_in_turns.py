"""The ranks clear their caches in different steps.

In the fixed job all ranks clear their caches in the same step.
"""

import time

import common
import torch
from torch.nn.parallel import DistributedDataParallel

rank = common.begin()
ddp = DistributedDataParallel(common.sleeping(3, 64, 5))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
own = 0 if common.FIXED else 5 * rank
for step in common.steps():
    ddp(torch.randn(16, 64)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 3 + own:
        time.sleep(0.2)
common.end()
