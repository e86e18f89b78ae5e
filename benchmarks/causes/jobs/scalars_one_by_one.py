"""Every step reduces two dozen metrics one by one, and reads each metric with item()."""

import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

common.begin()
ddp = DistributedDataParallel(common.sleeping(3, 64, 6))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for _ in common.steps():
    out = ddp(torch.randn(16, 64))
    loss = out.pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    metrics = {f"metric_{n}": out.detach().abs().mean() + n for n in range(24)}
    if common.FIXED:
        values = torch.stack(list(metrics.values()))
        dist.all_reduce(values)
        logged = dict(zip(metrics, values.tolist(), strict=True))
    else:
        logged = {}
        for name, value in metrics.items():
            dist.all_reduce(value)
            logged[name] = value.item()
common.end()
