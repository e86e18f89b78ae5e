"""Compression kernels on plain CPU tensors, for benchmarks that compare them with torch.

``x`` and ``residual`` are contiguous fp32 tensors on the CPU, with n values in any shape. Results
are new flat tensors. All functions release the GIL.

All functions raise ValueError for a tensor of a wrong type, device or length, and CommprofError if
the native module is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from commprof import _native
from commprof.errors import CommprofError

Tensor: TypeAlias = Any  # torch.Tensor, which the type checker does not know


def _module() -> Any:
    if _native.tune_error is not None:
        raise CommprofError(f"commprof.tune.compressors.kernels: {_native.tune_error}")
    return _native.tune


def topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the ``k`` values largest in magnitude, and their indices.

    Among values of equal magnitude, the values with the lowest indices are taken.

    Returns:
        Values, fp32, and indices, int32 and ascending, both [min(k, n)]. NaN counts as larger
        than infinity.
    """
    values, indices = _module().topk(x, k)
    return values, indices


def topk_feedback(gradient: Tensor, residual: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the values and indices of ``topk(gradient + residual, k)``, in one pass.

    ``residual`` becomes the sum, with 0 at the chosen indices; ``gradient`` does not change.
    """
    values, indices = _module().topk_feedback(gradient, residual, k)
    return values, indices


def encode_fp16(x: Tensor, scale: float = 1.0, residual: Tensor | None = None) -> Tensor:
    """Returns ``x * scale`` as float16 [n], rounded to nearest even; ``scale`` is a power of two.

    If ``residual`` is given, ``x + residual`` is encoded instead of ``x``, and ``residual`` is
    overwritten with the rounding error.
    """
    return _module().encode_fp16(x, scale, residual)


def reduce_fp16(
    encoded: Sequence[Tensor], factors: Sequence[float], out: Tensor | None = None
) -> Tensor:
    """Sums ``encoded[i] * factors[i]`` in order, in fp32; returns the sum, rounded to float16.

    If ``out`` is given, the rounded sum is written to it. ``out`` may be one of ``encoded``.
    """
    return _module().reduce_fp16(list(encoded), list(factors), out)


def encode_int8(x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Encodes ``x``, which must be finite, as int8 with a scale per 128 values.

    A scale is max|x| / 127, rounded to bf16.

    If ``residual`` is given, ``x + residual`` is encoded instead of ``x``, and ``residual`` is
    overwritten with the rounding error.

    Returns:
        Values, int8 [n], and scales [ceil(n / 128)] in a tensor of fp32.
    """
    values, scales = _module().encode_int8(x, residual)
    return values, scales
