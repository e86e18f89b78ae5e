"""A detector reduces the numbers of positives of its levels one by one.

The fixed job reduces the numbers of all levels in one call.
"""

import common
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

common.begin()


class Detector(nn.Module):
    """A body and a head for each of eight levels."""

    def __init__(self) -> None:
        super().__init__()
        self.body = common.sleeping(2, 64, 3)
        self.heads = nn.ModuleList(nn.Linear(64, 32) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = [head(features) for features in [self.body(x)] for head in self.heads]
        positives = torch.stack([(level > 0).sum().float() for level in levels])
        for part in [positives] if common.FIXED else positives.split(1):
            dist.all_reduce(part)
            part.clamp_(min=1.0).tolist()
        losses = [
            level.pow(2).sum() / number for level, number in zip(levels, positives, strict=True)
        ]
        return torch.stack(losses).sum()


ddp = DistributedDataParallel(Detector())
optimizer = torch.optim.SGD(ddp.parameters(), 1e-5)
for _ in common.steps():
    ddp(torch.randn(16, 64)).backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
