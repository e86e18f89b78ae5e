"""After a step of DDP all ranks have the same model, bit by bit."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from commprof.analysis.checks.outcome import FAIL, PASS, SKIP, Outcome
from commprof.checks.ranks import Ranks, own_ranks

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


def out_of_sync(module: nn.Module) -> tuple[int, ...]:
    """The ranks whose copy of a model differs from most ranks' copies; empty if all have one.

    For a training of one's own, every some hundred steps: all ranks of the default process group
    call it, between an update and the next forward. It costs :func:`parameters_hash` and one small
    collective. Of several copies as common the one of the lowest rank counts as right.
    """
    return _different(own_ranks().gather(parameters_hash(module)))


def measure(ranks: Ranks) -> str:
    """Hashes a small model after some steps on data of the rank's own."""
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
    different = _different(values)
    if not different:
        return Outcome(NAME, PASS, f"the same bits on all ranks after {_STEPS} steps")
    same = [rank for rank in range(len(values)) if rank not in different]
    return Outcome(
        NAME,
        FAIL,
        f"rank {', '.join(map(str, different))} has another model than rank {same[0]} "
        f"and {len(same) - 1} more after {_STEPS} steps",
        "gradients are not averaged as they should be: compare torch's version, its build and the "
        "processor of these ranks with the others'",
    )


def _different(hashes: Sequence[str]) -> tuple[int, ...]:
    common, _ = Counter(hashes).most_common(1)[0]
    return tuple(rank for rank, value in enumerate(hashes) if value != common)
