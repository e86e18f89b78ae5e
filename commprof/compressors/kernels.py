"""Compression kernels on plain CPU tensors, as benchmarks hold them against torch.

``x`` and ``residual`` are contiguous fp32 tensors on the CPU, of any shape and taken as flat;
results are flat and new. Where a ``residual`` is given, ``x + residual`` is encoded, and
afterwards ``residual`` holds what the encoding lost of it. All functions release the GIL and raise
ValueError for a tensor of another type, device or length, naming it and what is allowed. They need
the native module; CommprofError says why there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from commprof import _native
from commprof.errors import CommprofError

Tensor: TypeAlias = Any  # torch.Tensor; torch is not followed by the type checker


def _module() -> Any:
    if _native.native is None:
        raise CommprofError(f"commprof.compressors.kernels: {_native.native_error}")
    return _native.native


def topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` values largest in magnitude, exactly, and their places; ties to the lowest.

    Returns:
        Values, fp32, and indices, int32 and ascending, both [min(k, n)]. NaN counts as larger
        than infinity.
    """
    values, indices = _module().topk(x, k)
    return values, indices


def topk_feedback(gradient: Tensor, residual: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Top-K of ``gradient + residual`` in one pass, as in ``topk``.

    ``residual`` becomes that sum, 0 at the chosen places; ``gradient`` stays.
    """
    values, indices = _module().topk_feedback(gradient, residual, k)
    return values, indices


def encode_fp16(x: Tensor, scale: float = 1.0, residual: Tensor | None = None) -> Tensor:
    """``x * scale`` as float16 [n], to nearest even; scales are powers of two."""
    return _module().encode_fp16(x, scale, residual)


def reduce_fp16(
    encoded: Sequence[Tensor], factors: Sequence[float], out: Tensor | None = None
) -> Tensor:
    """The sum of ``encoded[i] * factors[i]`` in order, in fp32, rounded once to float16 [n].

    It is written to ``out`` where that is given; ``out`` may be one of ``encoded``.
    """
    return _module().reduce_fp16(list(encoded), list(factors), out)


def encode_int8(x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Integers, int8 [n], and per 128 a scale, fp32: max|x| / 127 as bf16. ``x`` is finite."""
    values, scales = _module().encode_int8(x, residual)
    return values, scales
