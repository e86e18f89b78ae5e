"""Gradients are averaged by hand, but each rank draws its own weights; the twin sends rank 0's."""

import common
import torch
import torch.distributed as dist

rank = common.begin()
torch.manual_seed(rank)
model = common.computing(4, 128)
if common.FIXED:
    with torch.no_grad():
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, src=0)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in common.steps():
    model(torch.randn(64, 128)).pow(2).mean().backward()
    flat = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])
    dist.all_reduce(flat)
    first = 0
    for parameter in model.parameters():
        size = parameter.numel()
        parameter.grad.copy_(flat[first : first + size].view_as(parameter) / 2)
        first += size
    optimizer.step()
    optimizer.zero_grad()
common.end()
