"""Usage: nccl.py ddp|fsdp2 LATE_MS, with all ranks on the first GPU.

NCCL refuses two ranks of one host on one GPU, so NCCL_HOSTID gives each rank its own host.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS = 20


def main(strategy: str, late_ms: float) -> None:
    os.environ |= {"NCCL_HOSTID": os.environ["RANK"], "NCCL_SOCKET_IFNAME": "lo"}
    device = torch.device("cuda:0")
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(6))).to(device)
    if strategy == "ddp":
        model = DistributedDataParallel(model, bucket_cap_mb=8)
    else:
        for layer in [*model, model]:
            fully_shard(layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.randn(256, 1024, device=device)).square().mean()
        if rank == world_size - 1:
            time.sleep(late_ms / 1e3)
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    sys.stdout.write(f"rank {rank} {' '.join(losses)}\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
