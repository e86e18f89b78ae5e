"""Each rank draws new weights after DDP was made; the fixed job draws them before."""

import common
import torch
from torch.nn.parallel import DistributedDataParallel

rank = common.begin()
model = common.computing(4, 128)


def draw() -> None:
    torch.manual_seed(rank)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.1)


if common.FIXED:
    draw()
ddp = DistributedDataParallel(model)
if not common.FIXED:
    draw()
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for _ in common.steps():
    ddp(torch.randn(1024, 128)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
