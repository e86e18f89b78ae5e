"""A dictionary of statistics is gathered as an object in every step.

In the fixed job only every hundredth step gathers the dictionary.
"""

import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank = common.begin()
ddp = DistributedDataParallel(common.sleeping(2, 64, 4))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for step in common.steps():
    loss = ddp(torch.randn(16, 64)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if not common.FIXED or step % 100 == 0:
        mine = {"step": step, "loss": loss.item(), "rank": rank, "lines": "x" * 1_000_000}
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, mine)
common.end()
