"""An epoch has only five batches, and the loader starts new workers for each epoch.

The fixed job's workers keep running.
"""

import common
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

common.begin()
ddp = DistributedDataParallel(common.sleeping(3, 128, 2.0))
optimizer = torch.optim.SGD(ddp.parameters(), 0.01)
data = TensorDataset(torch.randn(80, 128))
sampler = DistributedSampler(data)
loader = DataLoader(
    data, batch_size=8, sampler=sampler, num_workers=2, persistent_workers=common.FIXED
)
for epoch in range(common.STEPS // 5):
    sampler.set_epoch(epoch)
    for (batch,) in loader:
        ddp(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
common.end()
