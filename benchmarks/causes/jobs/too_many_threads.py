"""Each rank computes with eight threads on few cores.

In the fixed job each rank has one thread.
"""

import common
import torch
from torch.nn.parallel import DistributedDataParallel

common.begin()
torch.set_num_threads(1 if common.FIXED else 8)
ddp = DistributedDataParallel(common.computing(6, 512))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for _ in common.steps():
    ddp(torch.randn(64, 512)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
