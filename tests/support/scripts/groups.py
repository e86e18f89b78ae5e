import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(steps: int) -> float:
    rank = dist.get_rank()
    second = dist.new_group(group_desc="second")
    alone = [dist.new_group([r]) for r in range(dist.get_world_size())][rank]
    early = DistributedDataParallel(nn.Linear(16, 16))
    optimizer = torch.optim.SGD(early.parameters(), lr=1e-2)
    late = None
    for step in range(steps):
        if step == 2:
            late = DistributedDataParallel(nn.Linear(16, 16), process_group=second)
        hidden = early(torch.randn(4, 16))
        loss = (late(hidden) if late is not None else hidden).square().mean()
        optimizer.zero_grad()
        loss.backward()
        total = loss.detach().clone()
        works = [dist.all_reduce(total, group=group, async_op=True) for group in (second, alone)]
        for work in works:
            work.wait()
        optimizer.step()
    return total.item()


def main() -> None:
    results = []
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    launcher = dist.TCPStore(address, port, is_master=False)
    for turn in range(2):
        # With the same prefix, gloo could find the addresses of the first turn's groups.
        store = dist.PrefixStore(f"turn_{turn}", launcher)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        torch.manual_seed(dist.get_rank())
        results.append(train(6).hex())
        dist.barrier()
        dist.destroy_process_group()
    sys.stdout.write(f"rank {rank} {' '.join(results)}\n")


if __name__ == "__main__":
    main()
