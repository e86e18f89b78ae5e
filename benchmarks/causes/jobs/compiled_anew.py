"""The model is compiled for each new length of its sequences; the fixed job pads the sequences."""

import common
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank = common.begin()
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
# The job has more lengths than torch's default limit of compiled versions.
torch._dynamo.config.recompile_limit = 64
model = torch.compile(model, dynamic=False, backend="aot_eager")
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), 0.01)
for step in common.steps():
    new = step % 4 == 2 * rank
    length = 256 if common.FIXED or not new else 200 + step
    batch = torch.randn(4, length, 64)
    (ddp(batch) - batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
