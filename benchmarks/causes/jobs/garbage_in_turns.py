"""Ranks with many long-lived objects collect garbage in different steps.

In the fixed job all ranks collect garbage in the same step.
"""

import gc

import common
import torch
from torch.nn.parallel import DistributedDataParallel

rank = common.begin()
ddp = DistributedDataParallel(common.sleeping(3, 64, 5))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
kept = [{"a": [number], "b": (number,)} for number in range(150_000)]
gc.collect()
if common.FIXED:
    gc.disable()
    gc.freeze()
else:
    gc.set_threshold(2000, 5, 2)
rubbish = []
for step in common.steps():
    for number in range(1500 + 700 * rank):
        cycle = [number]
        cycle.append(cycle)
        rubbish.append([cycle, {"n": number}])
    if step % 4 == 3:
        rubbish.clear()
        kept.extend({"c": [number]} for number in range(6000))
    ddp(torch.randn(16, 64)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if common.FIXED and step % 20 == 19:
        gc.collect(1)
common.end()
