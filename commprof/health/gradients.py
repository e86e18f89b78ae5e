"""After a step of DDP all ranks have the same model, bit by bit."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from commprof.analysis.health import FAIL, PASS, SKIP, Outcome
from commprof.health.ranks import Ranks

NAME = "gradients"
_STEPS = 3


def parameters_hash(module: nn.Module) -> str:
    """SHA-256 over all parameters and buffers: equal on two ranks if, and only if, they are.

    It copies what is on a device to the host, so it costs a pass over the model.
    """
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        value = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()


def measure(ranks: Ranks) -> str:
    """The hash of a small model after some steps on data of the rank's own."""
    layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
    if ranks.world_size == 1:
        return parameters_hash(layers)
    model = DistributedDataParallel(layers, bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    random = torch.Generator().manual_seed(ranks.rank)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        model(torch.randn(16, 64, generator=random)).square().mean().backward()
        optimizer.step()
    return parameters_hash(layers)


def judge(values: Sequence[str]) -> Outcome:
    """Fails where ranks differ, and names those that differ from most."""
    if len(values) == 1:
        return Outcome(NAME, SKIP, "one rank has nothing to compare with")
    common, count = Counter(values).most_common(1)[0]
    if count == len(values):
        return Outcome(NAME, PASS, f"the same bits on all ranks after {_STEPS} steps")
    different = [rank for rank, value in enumerate(values) if value != common]
    return Outcome(
        NAME,
        FAIL,
        f"rank {', '.join(map(str, different))} has another model than rank {values.index(common)} "
        f"and {count - 1} more after {_STEPS} steps",
        "gradients are not averaged as they should be: compare torch's version, its build and the "
        "processor of these ranks with the others'",
    )
