"""DistributedDataParallel in a training loop without a framework.

torchrun --nproc-per-node 2 examples/ddp.py
commprof report commprof-trace
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import commprof


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(640, 32), torch.randint(0, 4, (640,)))
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data))
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 4))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)

    with commprof.profile("commprof-trace") as prof:
        commprof.attach(ddp)  # times gradients bucket by bucket
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(ddp(inputs), targets).backward()
            optimizer.step()
            prof.step()  # ends a step

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
