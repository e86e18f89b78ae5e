"""For each state of a metric there is a barrier, a gather of sizes and a gather of values.

The fixed job reduces all states in one call.
"""

import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

common.begin()
ddp = DistributedDataParallel(common.sleeping(2, 64, 3))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)


def gathered(value: torch.Tensor) -> torch.Tensor:
    """Gathers a value of all ranks, like libraries of metrics."""
    dist.barrier()
    size = torch.tensor(value.shape)
    sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, size)
    values = [torch.zeros_like(value) for _ in sizes]
    dist.all_gather(values, value)
    return torch.cat(values)


total, weight = torch.zeros(1), torch.zeros(1)
for _ in common.steps():
    loss = ddp(torch.randn(16, 64)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    total += loss.detach()
    weight += 1
    if common.FIXED:
        joined = torch.cat([total, weight])
        dist.all_reduce(joined)
        shown = (joined[0] / joined[1]).item()
    else:
        shown = (gathered(total).sum() / gathered(weight).sum()).item()
common.end()
