"""DDP exchanges the bucket of a large layer that is not trained.

The fixed job freezes the layer first.
"""

import common
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

common.begin()


class Adapted(nn.Module):
    """A large layer that is not trained, and small layers that are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(1024, 1024)
        self.adapter = common.sleeping(3, 64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.backbone(x)[:, :64].detach() + self.adapter(x[:, :64])


model = Adapted()
if common.FIXED:
    model.backbone.requires_grad_(False)
    ddp = DistributedDataParallel(model)
else:
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
optimizer = torch.optim.SGD(model.adapter.parameters(), 1e-3)
for _ in common.steps():
    ddp(torch.randn(16, 1024)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
