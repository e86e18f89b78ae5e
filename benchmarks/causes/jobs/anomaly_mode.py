"""Autograd's anomaly detection is left on; the fixed job trains without it."""

import common
import torch
from torch.nn.parallel import DistributedDataParallel

common.begin()
ddp = DistributedDataParallel(common.resting(common.computing(6, 128), 128, 2))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
torch.autograd.set_detect_anomaly(not common.FIXED)
for _ in common.steps():
    ddp(torch.randn(64, 128)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
