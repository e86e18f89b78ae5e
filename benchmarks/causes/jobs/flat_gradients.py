"""Gradients are joined and reduced when backward is over; in the fixed job DDP reduces them."""

import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

common.begin()
model = common.sleeping(8, 640, 2)
if common.FIXED:
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)


def reduce_gradients() -> None:
    """Averages all gradients as one tensor."""
    grads = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([grad.view(-1) for grad in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for grad, part in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
        grad.copy_(part.view_as(grad))


for _ in common.steps():
    model(torch.randn(32, 640)).pow(2).mean().backward()
    if not common.FIXED:
        reduce_gradients()
    optimizer.step()
    optimizer.zero_grad()
common.end()
