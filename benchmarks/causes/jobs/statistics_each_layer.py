"""Every norm layer computes means over the batches of all ranks.

In the fixed job a rank computes means over its own batch. Both jobs have the same class of norm
layer, because torch's BatchNorm needs less compute.
"""

import common
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

common.begin()


def exchanged(x: torch.Tensor) -> torch.Tensor:
    """Returns the mean over the ranks; in the fixed job, a copy of the rank's own values."""
    x = x.clone()
    if common.FIXED:
        return x / 1
    dist.all_reduce(x)
    return x / dist.get_world_size()


class Mean(torch.autograd.Function):
    """Mean over the ranks, as in SyncBatchNorm, which needs GPUs."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return exchanged(x)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return exchanged(grad)


class Norm(nn.BatchNorm1d):
    """Normalises by statistics of all ranks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, square = Mean.apply(torch.cat([x.mean(0), x.pow(2).mean(0)])).chunk(2)
        return (x - mean) * torch.rsqrt(square - mean**2 + self.eps) * self.weight + self.bias


layers = [layer for _ in range(10) for layer in (nn.Linear(64, 64), Norm(64), nn.ReLU())]
model = nn.Sequential(*layers, common.Slept(64, 6))
ddp = DistributedDataParallel(model, broadcast_buffers=False)
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for _ in common.steps():
    ddp(torch.randn(32, 64)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
