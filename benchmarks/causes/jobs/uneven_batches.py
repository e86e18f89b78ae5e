"""Each rank draws the size of its batches, and all ranks wait for the largest batch.

The fixed job divides the same samples evenly.
"""

import random

import common
import torch
from torch.nn.parallel import DistributedDataParallel

rank = common.begin()
lengths = [random.Random(number) for number in range(2)]


class Reader(torch.nn.Module):
    """Layers that take time in proportion to the number of rows of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(common.Sleep.apply(x, x.shape[0] / 8))


model = DistributedDataParallel(Reader())
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in common.steps():
    drawn = [of_rank.choice([32, 64, 128, 256]) for of_rank in lengths]
    rows = sum(drawn) // len(drawn) if common.FIXED else drawn[rank]
    model(torch.randn(rows, 256, requires_grad=True)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
