"""Each step takes the first batch of a new pass over the data; the fixed job has one iterator."""

import time

import common
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Drawn(Dataset):  # type: ignore[type-arg]
    """Samples that take half a millisecond each to load."""

    def __len__(self) -> int:
        return 32 * (common.STEPS + 1)

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.0005)
        return torch.randn(128)


common.begin()
data = Drawn()
loader = DataLoader(data, 16, sampler=DistributedSampler(data), num_workers=1)
ddp = DistributedDataParallel(common.sleeping(4, 128, 2))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
batches = iter(loader)
for _ in common.steps():
    batch = next(batches) if common.FIXED else next(iter(loader))
    ddp(batch).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
