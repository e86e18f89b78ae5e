"""All ranks are bound to one core, as OpenMP or a launcher may do.

The ranks of the fixed job use all cores.
"""

import os

if os.environ.get("FIXED") != "1":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import common
import torch
from torch.nn.parallel import DistributedDataParallel

assert common.FIXED or len(os.sched_getaffinity(0)) == 1
common.begin()
ddp = DistributedDataParallel(common.computing(6, 256))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for _ in common.steps():
    ddp(torch.randn(1024, 256)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
