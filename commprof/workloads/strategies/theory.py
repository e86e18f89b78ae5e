"""Computes the bytes that a strategy exchanges in a step, from the shapes of the parameters.

Sizes are counted as in nccl-tests. An all-reduce or a broadcast has the size of its tensor. An
all-gather or a reduce-scatter has the size of all ranks' parts together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Expected:
    """Expected calls of one operation in one step of one rank."""

    op: str
    """Name in a trace: all_reduce, broadcast, all_gather_into_tensor or reduce_scatter_tensor."""
    size_bytes: int
    """Sum of the calls' sizes."""
    formula: str
    """Explanation of the size, in words."""


def all_reduced_gradients(model: nn.Module) -> Expected:
    """Returns DDP's expected all-reduces: each gradient once per step."""
    return Expected("all_reduce", _bytes(trained(model)), "trained parameters")


def broadcast_buffers(model: nn.Module, ddp_options: Mapping[str, Any]) -> tuple[Expected, ...]:
    """Returns DDP's expected broadcasts: rank 0's buffers once per step.

    DDP broadcasts before the first forward pass of a step, even inside ``no_sync``.

    ddp_options: keyword arguments of DistributedDataParallel.
    """
    chosen = ddp_options.get("forward_sync_buffers")
    if chosen is None:
        chosen = ddp_options.get("broadcast_buffers")
    size = 0 if chosen is False else _bytes(model.buffers())
    return (Expected("broadcast", size, "buffers"),) if size else ()


def broadcast_parameters(model: nn.Module) -> Expected:
    """Returns ZeRO-1's expected broadcasts: each parameter from the rank that updates it."""
    return Expected("broadcast", _bytes(trained(model)), "trained parameters")


def sharded(
    groups: Sequence[Sequence[Tensor]],
    ranks: int,
    replicas: int,
    accumulate: int,
    gather_bytes: int | None,
) -> tuple[Expected, ...]:
    """Returns FSDP's expected collectives, for groups of parameters that are gathered together.

    Each of the ``accumulate`` passes of a step gathers a group for forward and again for backward.
    The root's group is gathered only for forward. Gradients are reduce-scattered once per step, and
    then all-reduced between replicas. Parameters are cut along dimension 0 into equal parts, with
    padding.

    groups: parameters of each group. The last group is the root's and may be empty.
    ranks: number of ranks that share a parameter.
    replicas: number of copies of the model.
    gather_bytes: bytes of one element when gathered; None: the element's own size.
    """
    found: list[Expected] = []
    *blocks, root = groups
    reduced = sum(
        padded_count(p, ranks) * _gradient_bytes(p, gather_bytes)
        for group in groups
        for p in group
        if p.requires_grad
    )
    if ranks > 1:
        passes = [(group, 2) for group in blocks] + [(root, 1)]
        gathered = sum(
            times * padded_count(p, ranks) * (gather_bytes or p.element_size())
            for group, times in passes
            for p in group
        )
        found.append(
            Expected(
                "all_gather_into_tensor",
                accumulate * gathered,
                "block parameters in forward and in backward, other parameters in forward",
            )
        )
        found.append(Expected("reduce_scatter_tensor", reduced, "trained parameters"))
    if replicas > 1:
        found.append(Expected("all_reduce", reduced // ranks, "a shard of the trained parameters"))
    return tuple(found)


def together(rows: Iterable[Expected]) -> tuple[Expected, ...]:
    """Merges the rows of an operation into one row, with the sum of the sizes."""
    by_op: dict[str, list[Expected]] = {}
    for row in rows:
        by_op.setdefault(row.op, []).append(row)
    return tuple(
        Expected(op, sum(row.size_bytes for row in same), " and ".join(row.formula for row in same))
        for op, same in by_op.items()
    )


def trained(model: nn.Module) -> list[Tensor]:
    """Returns the parameters that require gradients."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def padded_count(parameter: Tensor, ranks: int) -> int:
    """Returns a parameter's number of elements, with padding to equal parts for all ranks."""
    rows, *rest = parameter.shape or (1,)
    return math.ceil(rows / ranks) * ranks * math.prod(rest)


def _gradient_bytes(parameter: Tensor, gather_bytes: int | None) -> int:
    # If parameters are gathered in a smaller type, gradients are reduced in fp32.
    return parameter.element_size() if gather_bytes is None else 4


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
