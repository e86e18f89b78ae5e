from __future__ import annotations

_TEXT = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

{first}
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range({layers})])
ddp = DistributedDataParallel(model, **{options!r})
{wrapped}
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for _ in range({steps}):
    optimizer.zero_grad()
    ddp(torch.randn(4, 256)).square().mean().backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""
LAYER_BYTES = (256 * 256 + 256) * 4


def plain_script(
    *,
    steps: int = 6,
    layers: int = 1,
    first: str = "",
    wrapped: str = "",
    options: dict[str, object] | None = None,
) -> str:
    """Returns the script; `first` is put before the process group, `wrapped` below the model."""
    return _TEXT.format(
        steps=steps, layers=layers, first=first, wrapped=wrapped, options=options or {}
    )
