"""Checks that all ranks have the same model, bit by bit, after steps with DDP."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from commprof.analysis.checks.outcome import FAIL, PASS, SKIP, Outcome
from commprof.checks.ranks import Ranks, own_ranks
from commprof.ddp_parameters import kept_equal
from commprof.text import named_ranks

NAME = "gradients"
_STEPS = 3


def parameters_hash(module: nn.Module) -> str:
    """Returns a SHA-256 hash of the bits of all parameters and buffers.

    The function reads the whole model. Tensors on a device are copied to the host.
    """
    return _hash_of(module.state_dict().items())


def _hash_of(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    digest = hashlib.sha256()
    for name, tensor in tensors:
        value = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()


def out_of_sync(module: nn.Module) -> tuple[int, ...]:
    """Returns the ranks whose model differs from the most common one; empty if all are equal.

    In a DDP model, only the parameters that DDP keeps equal are compared. In other modules, all
    parameters and buffers are compared.

    Call this function in a training loop, every few hundred steps, between an update and the next
    forward pass. All ranks of the default process group must call it. A call reads the whole model
    and runs one small collective. If several models are equally common, the model of the lowest
    rank counts as right.
    """
    is_ddp = isinstance(module, DistributedDataParallel)
    digest = _hash_of(_numbered(module)) if is_ddp else parameters_hash(module)
    return _different(own_ranks().gather(digest))


def _numbered(ddp: DistributedDataParallel) -> Iterable[tuple[str, torch.Tensor]]:
    return ((str(number), parameter) for number, parameter in enumerate(kept_equal(ddp)))


def measure(ranks: Ranks) -> str:
    """Trains a small model for a few steps, with different data on each rank; returns its hash."""
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
    """Fails if the ranks' hashes differ, and names the ranks that differ from the majority."""
    if len(values) == 1:
        return Outcome(NAME, SKIP, "there is only one rank, so nothing to compare")
    different = _different(values)
    if not different:
        return Outcome(NAME, PASS, f"after {_STEPS} steps, all ranks have the same bits")
    same = [rank for rank in range(len(values)) if rank not in different]
    return Outcome(
        NAME,
        FAIL,
        f"after {_STEPS} steps, the model of {named_ranks(different)} differs from "
        f"that of rank {same[0]} (other ranks equal to rank {same[0]}: {len(same) - 1})",
        "gradients are not averaged correctly: compare the version and build of torch and the "
        "processor of these ranks with those of the other ranks",
    )


def _different(hashes: Sequence[str]) -> tuple[int, ...]:
    common, _ = Counter(hashes).most_common(1)[0]
    return tuple(rank for rank, value in enumerate(hashes) if value != common)
