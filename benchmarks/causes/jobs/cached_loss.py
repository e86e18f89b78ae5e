"""A hook runs a DDP backward pass for each mini batch, and each pass exchanges gradients.

In the fixed job only the last pass exchanges gradients.
"""

import contextlib

import common
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

common.begin()
encoder = nn.Sequential(common.Slept(64, 2), nn.Linear(64, 2048), nn.Linear(2048, 64))
ddp = DistributedDataParallel(encoder)
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
for _ in common.steps():
    batches = torch.randn(32, 64).split(8)
    with torch.no_grad():
        encoded = [ddp.module(batch) for batch in batches]
    leaves = [each.requires_grad_() for each in encoded]
    scores = torch.cat(leaves) @ torch.cat(leaves).T
    grads = torch.autograd.grad(nn.functional.cross_entropy(scores, torch.arange(32)), leaves)

    def encode_again(
        factor: torch.Tensor,
        batches: tuple[torch.Tensor, ...] = batches,
        grads: tuple[torch.Tensor, ...] = grads,
    ) -> None:
        for number, (batch, grad) in enumerate(zip(batches, grads, strict=True)):
            early = common.FIXED and number < len(batches) - 1
            with torch.enable_grad(), ddp.no_sync() if early else contextlib.nullcontext():
                (ddp(batch) * grad * factor).sum().backward()

    loss = torch.ones((), requires_grad=True)
    loss.register_hook(encode_again)
    (loss * 1.0).backward()
    optimizer.step()
    optimizer.zero_grad()
common.end()
