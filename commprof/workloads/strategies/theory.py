"""What a strategy must exchange in a step, from the shapes of the parameters alone.

Bytes are counted as nccl-tests count the size of a collective: the whole tensor of an all-reduce
or a broadcast, all ranks' parts together of an all-gather or a reduce-scatter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Expected:
    """Expected calls of one operation in one step of one rank."""

    op: str
    """As in a trace: all_reduce, broadcast, all_gather_into_tensor or reduce_scatter_tensor."""
    size_bytes: int
    """Sum of their sizes."""
    formula: str
    """How it comes about, for a reader."""


def all_reduced_gradients(model: nn.Module) -> Expected:
    """DDP's all-reduces: every gradient once per synchronised backward pass."""
    return Expected("all_reduce", _bytes(trained(model)), "trained parameters")


def broadcast_buffers(model: nn.Module) -> tuple[Expected, ...]:
    """DDP's broadcasts: rank 0's buffers, before the forward pass after each synchronised one."""
    size = _bytes(model.buffers())
    return (Expected("broadcast", size, "buffers"),) if size else ()


def broadcast_parameters(model: nn.Module) -> Expected:
    """ZeRO-1's broadcasts: whoever updated a parameter sends it to all others."""
    return Expected("broadcast", _bytes(trained(model)), "trained parameters")


def sharded(
    groups: Sequence[Sequence[Tensor]],
    ranks: int,
    replicas: int,
    accumulate: int,
    gather_bytes: int | None,
) -> tuple[Expected, ...]:
    """FSDP's collectives, by groups of parameters that are gathered together.

    A group is gathered for forward and, but for the root's, which stays until then, once more
    for backward: in every pass of an accumulation. Its gradients are reduce-scattered once per
    step, in fp32 or as they are, and all-reduced between the replicas. Parameters are cut
    along dimension 0 into equal parts, the last ones filled up.

    groups: in any order but for the last one, which is the root's and may be empty.
    ranks: among which a parameter is cut; nothing is exchanged among less than 2.
    gather_bytes: of one element as gathered; its own size when None.
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
                "blocks twice and the rest once a pass",
            )
        )
        found.append(Expected("reduce_scatter_tensor", reduced, "trained parameters"))
    if replicas > 1:
        found.append(Expected("all_reduce", reduced // ranks, "a shard of the trained parameters"))
    return tuple(found)


def together(rows: Iterable[Expected]) -> tuple[Expected, ...]:
    """Joins rows to one per operation."""
    by_op: dict[str, list[Expected]] = {}
    for row in rows:
        by_op.setdefault(row.op, []).append(row)
    return tuple(
        Expected(op, sum(row.size_bytes for row in same), " and ".join(row.formula for row in same))
        for op, same in by_op.items()
    )


def trained(model: nn.Module) -> list[Tensor]:
    """Parameters that have gradients."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def padded_count(parameter: Tensor, ranks: int) -> int:
    """Number of elements, with padding, of a parameter cut along dimension 0."""
    rows, *rest = parameter.shape or (1,)
    return math.ceil(rows / ranks) * ranks * math.prod(rest)


def _gradient_bytes(parameter: Tensor, gather_bytes: int | None) -> int:
    """Bytes of one gradient element as reduced: fp32 where the computation is in less."""
    return parameter.element_size() if gather_bytes is None else 4


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
