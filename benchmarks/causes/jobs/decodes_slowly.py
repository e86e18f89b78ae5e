"""Rank 1 decodes a sample in four times the time of rank 0.

In the fixed job both ranks take equally long.
"""

import common
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

rank = common.begin()


class Samples(Dataset):
    def __len__(self) -> int:
        return 4 * common.STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        for _ in range(12 if rank == 1 and not common.FIXED else 3):
            table = torch.randn(256, 256)
            decoded = table @ table
        return decoded[0]


ddp = DistributedDataParallel(common.resting(common.computing(4, 256), 256, 6))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
torch.manual_seed(1 + rank)
for batch in DataLoader(Samples(), 4):
    ddp(batch / 100).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
