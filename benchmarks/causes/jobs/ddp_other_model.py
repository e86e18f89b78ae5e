"""The generator's backward pass also exchanges the discriminator's gradients.

In the fixed job the discriminator is frozen during this pass.
"""

import common
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

common.begin()
scaled = nn.Sequential(common.Slept(64, 2), nn.Linear(64, 256), nn.Linear(256, 64))
judging = nn.Sequential(common.Slept(64, 3), nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 64))
generator, discriminator = map(DistributedDataParallel, (scaled, judging))
optimizers = [torch.optim.SGD(model.parameters(), 1e-3) for model in (generator, discriminator)]
for _ in common.steps():
    with torch.no_grad():
        made = generator(torch.randn(4, 64))
    optimizers[1].zero_grad()
    (discriminator(made).mean() - discriminator.module(torch.randn(4, 64)).mean()).backward()
    optimizers[1].step()
    optimizers[0].zero_grad()
    discriminator.requires_grad_(not common.FIXED)
    (-discriminator(generator(torch.randn(4, 64))).mean()).backward()
    discriminator.requires_grad_(True)
    optimizers[0].step()
common.end()
