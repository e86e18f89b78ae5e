"""The buffers of a detector are large tables. DDP sends the tables before every forward pass."""

import common
import torch
from torch.nn.parallel import DistributedDataParallel

common.begin()
model = common.sleeping(3, 128, 7)
for number in range(20):
    model.register_buffer(f"anchors_{number}", torch.randn(200_000))
ddp = DistributedDataParallel(model, broadcast_buffers=not common.FIXED)
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for _ in common.steps():
    loss = ddp(torch.randn(16, 128)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
