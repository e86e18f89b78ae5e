"""Each step gathers all ranks' outputs to count right answers.

The fixed job gathers nothing in its steps.
"""

import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

common.begin()
ddp = DistributedDataParallel(common.resting(common.computing(8, 256), 256, 6))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for step in common.steps():
    out = ddp(torch.randn(512, 256))
    out.pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    everyone = [torch.zeros_like(out) for _ in range(dist.get_world_size())]
    if step >= 0 and not common.FIXED:
        dist.all_gather(everyone, out.detach())
    right = torch.cat(everyone).argmax(1).eq(0).sum().item()
common.end()
