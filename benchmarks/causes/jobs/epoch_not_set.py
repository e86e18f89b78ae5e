"""The epoch of a shuffling DistributedSampler is never set; the fixed job sets the epoch."""

import common
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

common.begin()
data = TensorDataset(torch.randn(320, 64, generator=torch.Generator().manual_seed(1)))
sampler = DistributedSampler(data)
loader = DataLoader(data, 16, sampler=sampler)
ddp = DistributedDataParallel(common.sleeping(2, 64, 4))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for epoch in range(common.STEPS // 10):
    if common.FIXED:
        sampler.set_epoch(epoch)
    for (x,) in loader:
        ddp(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
common.end()
