"""Compression kernels on plain CPU tensors.

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


def simd_level() -> str:
    """The instructions in use: "scalar", "avx2" or "avx512"."""
    return str(_module().simd_level())


def threads() -> int:
    """Threads that one kernel may use."""
    return int(_module().kernel_threads())


def set_threads(count: int) -> None:
    """Lets one kernel use so many threads; results do not depend on it.

    Raises:
        ValueError: ``count`` is not from 1 to 256.
    """
    _module().set_kernel_threads(count)


def topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` values largest in magnitude, exactly, and their places; ties to the lowest.

    Returns:
        Values, fp32, and indices, int32 and ascending, both [min(k, n)]. NaN counts as larger
        than infinity.
    """
    values, indices = _module().topk(x, k)
    return values, indices


def topk_feedback(gradient: Tensor, residual: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As ``topk`` of ``gradient + residual``, in one pass.

    ``residual`` becomes that sum, 0 at the chosen places; ``gradient`` stays.
    """
    values, indices = _module().topk_feedback(gradient, residual, k)
    return values, indices


def encode_fp16(x: Tensor, scale: float = 1.0, residual: Tensor | None = None) -> Tensor:
    """``x * scale`` as float16 [n], to nearest even; scales are powers of two."""
    return _module().encode_fp16(x, scale, residual)


def decode_fp16(encoded: Tensor, factor: float = 1.0) -> Tensor:
    """``encoded * factor`` as fp32 [n]."""
    return _module().decode_fp16(encoded, factor)


def reduce_fp16(
    encoded: Sequence[Tensor], factors: Sequence[float], out: Tensor | None = None
) -> Tensor:
    """The sum of ``encoded[i] * factors[i]`` in order, in fp32, rounded once to float16 [n].

    It is written to ``out`` where that is given; ``out`` may be one of ``encoded``.
    """
    return _module().reduce_fp16(list(encoded), list(factors), out)


def encode_bf16(x: Tensor, residual: Tensor | None = None) -> Tensor:
    """``x`` as bfloat16 [n], to nearest even; denormals are kept."""
    return _module().encode_bf16(x, residual)


def decode_bf16(encoded: Tensor, factor: float = 1.0) -> Tensor:
    """``encoded * factor`` as fp32 [n]."""
    return _module().decode_bf16(encoded, factor)


def reduce_bf16(
    encoded: Sequence[Tensor], factors: Sequence[float], out: Tensor | None = None
) -> Tensor:
    """As ``reduce_fp16``, of bfloat16."""
    return _module().reduce_bf16(list(encoded), list(factors), out)


def encode_int8(x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Integers, int8 [n], and per 128 a scale, fp32: max|x| / 127 as bf16. ``x`` is finite."""
    values, scales = _module().encode_int8(x, residual)
    return values, scales


def decode_int8(values: Tensor, scales: Tensor, n: int, factor: float = 1.0) -> Tensor:
    """``values * scale of the block * factor`` as fp32 [n]."""
    return _module().decode_int8(values, scales, n, factor)


def reduce_int8(
    encoded: Sequence[tuple[Tensor, Tensor]], n: int, factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The sum of encodings in this order, in fp32, times ``factor``, encoded again."""
    values, scales = _module().reduce_int8(list(encoded), n, factor)
    return values, scales


def encode_int4(x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Two values a byte, uint8 [32 ceil(n / 64)], a scale per 64: max|x| / 7. ``x`` is finite."""
    values, scales = _module().encode_int4(x, residual)
    return values, scales


def decode_int4(values: Tensor, scales: Tensor, n: int, factor: float = 1.0) -> Tensor:
    """``values * scale of the block * factor`` as fp32 [n]."""
    return _module().decode_int4(values, scales, n, factor)


def reduce_int4(
    encoded: Sequence[tuple[Tensor, Tensor]], n: int, factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """As ``reduce_int8``, of 4 bits."""
    values, scales = _module().reduce_int4(list(encoded), n, factor)
    return values, scales


def project_rows(gradient: Tensor, residual: Tensor, q: Tensor) -> Tensor:
    """``residual += gradient``, and ``residual @ q.T`` [rows, rank]; of PowerSGD the first pass.

    ``gradient`` and ``residual`` are [rows, cols], ``q`` is [rank, cols]; ranks are 1 to 16.
    """
    return _module().project_rows(gradient, residual, q)


def orthogonalise(p: Tensor) -> None:
    """Makes the columns of ``p`` [rows, rank] orthonormal in place, dependent ones zero."""
    _module().orthogonalise(p)


def project_cols(residual: Tensor, p: Tensor) -> Tensor:
    """``p.T @ residual`` [rank, cols]: the second pass."""
    return _module().project_cols(residual, p)


def reconstruct(p: Tensor, q: Tensor, residual: Tensor, q_local: Tensor) -> Tensor:
    """``p @ q`` [rows, cols], and ``residual -= p @ q_local``: the third pass.

    ``q`` is the ranks' mean, ``q_local`` this rank's own, from ``project_cols``.
    """
    return _module().reconstruct(p, q, residual, q_local)
