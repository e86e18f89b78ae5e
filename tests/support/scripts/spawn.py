import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(rank: int, world_size: int, rendezvous: str) -> None:
    dist.init_process_group("gloo", rendezvous, rank=rank, world_size=world_size)
    torch.manual_seed(rank)
    ddp = DistributedDataParallel(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-2)
    for _ in range(8):
        optimizer.zero_grad()
        loss = ddp(torch.randn(4, 16)).square().mean()
        loss.backward()
        optimizer.step()
    sys.stdout.write(f"rank {rank} {loss.item().hex()}\n")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    place = f"file://{os.path.abspath(sys.argv[1])}"
    mp.spawn(train, (2, place), nprocs=2)
