"""Rank 1 reads its batches from a slow disk; the fixed job loads them in a worker."""

import time

import common
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

rank = common.begin()


class Samples(Dataset):
    """Samples that rank 1 reads more slowly."""

    def __len__(self) -> int:
        return 8 * common.STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        if rank == 1:
            time.sleep(0.002)
        return torch.randn(64)


def main() -> None:
    ddp = DistributedDataParallel(common.sleeping(3, 64, 5))
    optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
    torch.manual_seed(1 + rank)
    workers = {"num_workers": 1, "prefetch_factor": 4} if common.FIXED else {}
    for batch in DataLoader(Samples(), 8, **workers):
        ddp(batch).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    common.end()


if __name__ == "__main__":
    main()
