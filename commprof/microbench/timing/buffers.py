"""A rank's two buffers for one operation and size; in place they share memory as in NCCL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from commprof.microbench.operations import IN_PLACE, Operation
from commprof.microbench.patterns import TORCH_DTYPES, Pattern

Tensor = Any  # torch is not followed by the type checker


@dataclass(frozen=True)
class Buffers:
    """Where the input is and where the result goes."""

    source: Tensor
    """The input."""
    target: Tensor
    """The output; the same tensor as `source` where in place the two are one buffer."""

    def fill(self, pattern: Pattern, rank: int) -> None:
        """The input of the pattern, and an output that holds none of its result."""
        self.target.zero_()
        self.source.copy_(pattern.given(rank, self.source.numel()))

    def clear(self) -> None:
        """Zeros: what an in-place reduction may repeat without its values growing."""
        self.target.zero_()
        self.source.zero_()


def make_buffers(
    operation: Operation,
    placement: str,
    count: int,
    rank: int,
    world_size: int,
    dtype: str,
    device: str,
) -> Buffers:
    """Buffers whose pages are all there already."""
    given, result = operation.elements(count, world_size)

    def zeros(elements: int) -> Tensor:
        return torch.zeros(elements, dtype=TORCH_DTYPES[dtype], device=device)

    if placement != IN_PLACE:
        return Buffers(zeros(given), zeros(result))
    whole = zeros(max(given, result))
    own = slice(rank * count, (rank + 1) * count)
    if given == result:
        return Buffers(whole, whole)
    return Buffers(whole[own], whole) if given < result else Buffers(whole, whole[own])
