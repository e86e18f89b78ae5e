"""In every pass DDP searches for a head that gets no gradient; the fixed job's graph is static."""

import common
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

common.begin()


class Heads(nn.Module):
    """A body with two heads; the second head is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.body = common.computing(120, 48)
        self.used, self.unused = nn.Linear(48, 1), nn.Linear(48, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(self.body(x))


settings = {"static_graph": True} if common.FIXED else {"find_unused_parameters": True}
ddp = DistributedDataParallel(Heads(), **settings)
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for _ in common.steps():
    ddp(torch.randn(128, 48)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
