"""Ten metrics are gathered from all ranks one by one; the fixed job gathers them as one tensor."""

import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

common.begin()
ddp = DistributedDataParallel(common.resting(common.computing(6, 128), 128, 14))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for _ in common.steps():
    out = ddp(torch.randn(1024, 128))
    out.pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    metrics = torch.stack([out.detach()[:, n].mean() for n in range(10)])
    for part in [metrics] if common.FIXED else metrics.split(1):
        gathered = [torch.empty_like(part) for _ in range(2)]
        dist.all_gather(gathered, part)
        torch.stack(gathered).mean(0).tolist()
common.end()
