from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import commprof

DATA_MS, LOSS_MS = 4, 3


class SlowDataset(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(DATA_MS / 1e3)
        return torch.ones(64)


def main() -> None:
    dist.init_process_group("gloo")
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(64, 512), nn.Linear(512, 8)))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    with commprof.profile(sys.argv[1]) as prof:
        commprof.attach(ddp)
        for inputs in DataLoader(SlowDataset()):
            optimizer.zero_grad()
            loss = ddp(inputs).square().mean()
            time.sleep(LOSS_MS / 1e3)  # no phase includes this time
            loss.backward()
            optimizer.step()
            prof.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
