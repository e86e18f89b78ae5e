"""An embedding in front of layers that compute has dense gradients.

In the fixed job the embedding has sparse gradients.
"""

import common
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

common.begin()
table = nn.Embedding(30_000, 96, sparse=common.FIXED)
ddp = DistributedDataParallel(nn.Sequential(table, common.computing(6, 96)))
rest = [p for p in ddp.parameters() if p is not table.weight]
optimizers = [torch.optim.SGD(rest, 1e-3), torch.optim.SGD([table.weight], 1e-3)]
for _ in common.steps():
    ddp(torch.randint(30_000, (2048,))).pow(2).mean().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
common.end()
