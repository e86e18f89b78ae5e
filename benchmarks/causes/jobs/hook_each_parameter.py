"""A hook on each parameter reduces the parameter's gradient while backward waits.

In the fixed job DDP reduces the gradients.
"""

import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

common.begin()
model = common.resting(common.computing(12, 192), 192, 8)


def reduce_gradient(grad: torch.Tensor) -> torch.Tensor:
    grad = grad / dist.get_world_size()
    dist.all_reduce(grad)
    return grad


if common.FIXED:
    model = DistributedDataParallel(model)
else:
    for parameter in model.parameters():
        parameter.register_hook(reduce_gradient)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in common.steps():
    model(torch.randn(256, 192)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
