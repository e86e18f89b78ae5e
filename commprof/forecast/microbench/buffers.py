"""Buffers of a rank for one operation and size, and data with a known result.

In an in-place call, the input and output buffers share memory, as in NCCL.

Element i of rank r's input depends only on (i + r) mod m, where m is a small prime. So each block
of an input or a result repeats a table of m values. Values are small whole numbers, so that every
sum is exact in every type.

A check detects a block that is added twice, is in the wrong place or comes from the wrong rank.
There are two exceptions. A wrong place is not detected if m divides the block length or the
distance in blocks between the two places. A wrong rank is not detected if m divides the difference
between the two ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from commprof.forecast.microbench.operations import (
    IN_PLACE,
    BenchOperation,
    operation,
    pattern_modulus,
)

Tensor = Any  # the type checker does not read torch

TORCH_DTYPES = {
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "float": torch.float32,
    "double": torch.float64,
}


class Pattern:
    """Known inputs of one operation and the expected outputs, as tensors on the CPU."""

    def __init__(self, op: str, redop: str, dtype: str, world_size: int) -> None:
        """Raises UsageError if sums over the ranks are not exact in the type."""
        self._op = operation(op).name
        self._redop = redop if operation(op).reduces else ""
        self._dtype = TORCH_DTYPES[dtype]
        self._world_size = world_size
        self._modulus = pattern_modulus(op, redop, dtype, world_size)

    def given(self, rank: int, elements: int, first: int = 0) -> Tensor:
        """Returns `elements` elements of a rank's input, from element `first` on."""
        table = [self._value(rank, index) for index in range(self._modulus)]
        return self._repeated(table, first, elements)

    def expected(self, rank: int, count: int) -> Tensor | None:
        """Returns the output that a rank must get; None if the rank gets no output.

        ``count`` is the number of elements as in ``BenchOperation.elements``.
        """
        ranks = range(self._world_size)
        if self._op == "all_reduce":
            return self._reduced(0, count)
        if self._op == "reduce":
            return self._reduced(0, count) if rank == 0 else None
        if self._op == "reduce_scatter":
            return self._reduced(rank * count, count)
        if self._op == "broadcast":
            return self.given(0, count)
        if self._op == "all_gather":
            return torch.cat([self.given(other, count) for other in ranks])
        if self._op == "all_to_all":
            return torch.cat([self.given(other, count, rank * count) for other in ranks])
        assert self._op == "send_recv"
        return self.given((rank - 1) % self._world_size, count)

    def wrong(self, result: Tensor, expected: Tensor | None) -> int:
        """Counts the wrong elements of a result.

        A mean may differ by the rounding error of a division.
        """
        if expected is None:
            return 0
        got = result.to("cpu")
        if self._redop != "avg":
            return int((got != expected).sum())
        off = (got.double() - expected.double()).abs()
        # Integer types get no tolerance, because a mean of integers is exact if a backend supports
        # it.
        eps = torch.finfo(self._dtype).eps if self._dtype.is_floating_point else 0.0
        allowed = 2 * eps * expected.double().abs()
        return int((~(off <= allowed)).sum())

    def _value(self, rank: int, index: int) -> int:
        residue = (index + rank) % self._modulus
        return (2 if residue == 0 else 1) if self._redop == "prod" else residue

    def _reduced(self, first: int, elements: int) -> Tensor:
        reduce = _REDUCE[self._redop]
        columns = [
            [self._value(rank, index) for rank in range(self._world_size)]
            for index in range(self._modulus)
        ]
        return self._repeated([reduce(column) for column in columns], first, elements)

    def _repeated(self, table: Sequence[float], first: int, elements: int) -> Tensor:
        begin = first % self._modulus
        times = -(-(begin + elements) // self._modulus)
        whole = torch.tensor(table, dtype=torch.float64).to(self._dtype).repeat(max(times, 1))
        return whole[begin : begin + elements]


_REDUCE: dict[str, Callable[[Sequence[int]], float]] = {
    "sum": sum,
    "prod": math.prod,
    "min": min,
    "max": max,
    "avg": lambda values: sum(values) / len(values),
}


@dataclass(frozen=True)
class Buffers:
    """Input and output buffers of one call."""

    source: Tensor
    """Input buffer."""
    target: Tensor
    """Output buffer. In place, it shares memory with `source`."""

    def fill(self, pattern: Pattern, rank: int) -> None:
        """Fills the input with the pattern, and the output with zeros."""
        self.target.zero_()
        self.source.copy_(pattern.given(rank, self.source.numel()))

    def clear(self) -> None:
        """Fills both buffers with zeros, which repeated in-place reductions do not change."""
        self.target.zero_()
        self.source.zero_()


def make_buffers(
    operation: BenchOperation,
    placement: str,
    count: int,
    rank: int,
    world_size: int,
    dtype: str,
    device: str,
) -> Buffers:
    """Makes the buffers of a rank, with all pages in memory.

    ``count`` is the number of elements as in ``BenchOperation.elements``. ``placement`` is one of
    ``operation.placements``.
    """
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
