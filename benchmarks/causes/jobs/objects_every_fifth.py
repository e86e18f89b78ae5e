"""Every fifth step gathers objects, as some trainers do with metrics.

In the fixed job only every hundredth step gathers objects.
"""

import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

common.begin()
ddp = DistributedDataParallel(common.sleeping(2, 64, 3))
LINES = "x" * 2_000_000
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for step in common.steps():
    loss = ddp(torch.randn(16, 64)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % (100 if common.FIXED else 5) == 0:
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, {"loss": loss.item(), "lines": LINES})
common.end()
