"""ZeRO's optimizer sends each parameter in its own broadcast.

In the fixed job the optimizer sends a few large broadcasts.
"""

import common
import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

common.begin()
ddp = DistributedDataParallel(common.resting(common.computing(48, 64), 64, 8))
optimizer = ZeroRedundancyOptimizer(
    ddp.parameters(), torch.optim.Adam, parameters_as_bucket_view=common.FIXED, lr=1e-3
)
for _ in common.steps():
    ddp(torch.randn(128, 64)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
