"""Before every forward pass, DDP sends two buffers that never change: positions and a mask."""

import common
import torch
from torch.nn.parallel import DistributedDataParallel

common.begin()
model = common.computing(6, 192)
model.register_buffer("positions", torch.randn(1024, 512))
model.register_buffer("mask", torch.ones(1024, 1024))
ddp = DistributedDataParallel(model, broadcast_buffers=not common.FIXED)
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for _ in common.steps():
    ddp(torch.randn(2048, 192)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
