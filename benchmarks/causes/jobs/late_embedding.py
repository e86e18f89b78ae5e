"""The embedding at the model's input has dense gradients; in the fixed job they are sparse."""

import common
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

common.begin()
embedding = nn.Embedding(60_000, 64, sparse=common.FIXED)
model = nn.Sequential(embedding, *common.sleeping(3, 64, 4))
ddp = DistributedDataParallel(model)
rest = [p for p in ddp.parameters() if p is not embedding.weight]
optimizers = [torch.optim.SGD(rest, 1e-3), torch.optim.SGD([embedding.weight], 1e-3)]
for _ in common.steps():
    ddp(torch.randint(60_000, (64,))).pow(2).mean().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
common.end()
