"""Accelerate: attach to what prepare() returns.

torchrun --nproc-per-node 2 examples/with_accelerate.py
commprof report commprof-trace
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import commprof


def main() -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    data = TensorDataset(torch.randn(640, 32), torch.randint(0, 4, (640,)))
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(data, batch_size=16, shuffle=True)
    )

    with commprof.profile("commprof-trace") as prof:
        commprof.attach(model)  # under DDP; leave it out under FSDP
        for inputs, targets in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
            optimizer.step()
            if accelerator.sync_gradients:  # false while gradients accumulate
                prof.step()  # ends a step

    accelerator.end_training()


if __name__ == "__main__":
    main()
