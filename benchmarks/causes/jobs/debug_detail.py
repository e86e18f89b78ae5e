"""TORCH_DISTRIBUTED_DEBUG=DETAIL is left on, and gradients are averaged by hand."""

import common
import torch
import torch.distributed as dist

torch.set_num_threads(1)
if not common.FIXED:  # has the effect of the environment variable
    dist.set_debug_level(dist.DebugLevel.DETAIL)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = common.resting(common.computing(6, 96), 96, 4)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in common.steps():
    model(torch.randn(256, 96)).pow(2).mean().backward()
    flat = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])
    works = [dist.all_reduce(part, async_op=True) for part in flat.chunk(6)]
    for work in works:
        work.wait()
    for parameter, part in zip(
        model.parameters(), flat.split([p.numel() for p in model.parameters()]), strict=True
    ):
        parameter.grad.copy_(part.view_as(parameter) / 2)
    optimizer.step()
    optimizer.zero_grad()
common.end()
