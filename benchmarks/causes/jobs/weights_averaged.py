"""Weights are averaged after every update, tensor by tensor.

The fixed job averages one flat tensor.
"""

import common
import torch
import torch.distributed as dist

common.begin()
model = common.resting(common.computing(16, 96), 96, 8)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in common.steps():
    model(torch.randn(512, 96)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        if common.FIXED:
            flat = torch.nn.utils.parameters_to_vector(model.parameters())
            dist.all_reduce(flat)
            torch.nn.utils.vector_to_parameters(flat / 2, model.parameters())
        else:
            for parameter in model.parameters():
                dist.all_reduce(parameter)
                parameter /= 2
common.end()
