import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(48, 16), torch.randint(0, 4, (48,)))
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
    for _ in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(ddp(inputs), targets)
            loss.backward()
            optimizer.step()
    sys.stdout.write(f"rank {rank} {loss.item().hex()}\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
