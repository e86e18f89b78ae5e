"""A pipeline of two stages sends a whole batch at once; the fixed job sends ten micro batches."""

import common
import torch
import torch.distributed as dist

rank = common.begin()
PASSES = 10 if common.FIXED else 1
stage = common.sleeping(4, 64, 5 / PASSES)
optimizer = torch.optim.SGD(stage.parameters(), 1e-3)
for _ in common.steps():
    passes = []
    for _ in range(PASSES):
        x = torch.randn(60 // PASSES, 64)
        if rank:
            dist.recv(x, 0)
            passes.append((x.requires_grad_(), stage(x)))
        else:
            passes.append((x, stage(x)))
            dist.send(passes[-1][1].detach(), 1)
    for x, out in passes:
        if rank:
            (out.pow(2).mean() / PASSES).backward()
            dist.send(x.grad, 0)
        else:
            grad = torch.empty_like(out)
            dist.recv(grad, 1)
            out.backward(grad)
    optimizer.step()
    optimizer.zero_grad()
common.end()
