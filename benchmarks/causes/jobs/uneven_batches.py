"""Each rank draws the size of its batches, and all ranks wait for the largest batch.

The fixed job divides the same samples evenly. The sizes repeat every ten steps, so all turns have
the same batches.
"""

import random

import common
import torch
from torch.nn.parallel import DistributedDataParallel

rank = common.begin()
sizes = [random.Random(number).choices([32, 64, 128, 256], k=10) for number in range(2)]


class Reader(torch.nn.Module):
    """Layers that take time in proportion to the number of rows of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return common.Sleep.apply(self.layers(x), x.shape[0] / 8)


model = DistributedDataParallel(Reader())
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for step in common.steps():
    drawn = [of_rank[step % 10] for of_rank in sizes]
    rows = sum(drawn) // len(drawn) if common.FIXED else drawn[rank]
    model(torch.randn(rows, 256)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
