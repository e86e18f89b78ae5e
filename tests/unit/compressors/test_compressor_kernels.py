"""The kernels as Python has them, against torch's own operations."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from commprof import _native
from commprof.compressors import kernels

pytestmark = pytest.mark.skipif(_native.native is None, reason="no native module")

SIZES = (0, 1, 65, 4097, 70_001)


def values(n: int, seed: int = 0) -> torch.Tensor:
    """Normals on scales from 1e-5 to 1e-2, as gradients are."""
    generator = torch.Generator().manual_seed(seed)
    scale = 10.0 ** (torch.rand(n, generator=generator) * 3 - 5)
    return torch.randn(n, generator=generator) * scale


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0, 2.0])
def test_topk_is_torch_s(n: int, share: float) -> None:
    x, k = values(n), int(share * n)
    found, indices = kernels.topk(x, k)
    wanted = torch.topk(x.abs(), min(k, n)).indices.sort().values
    assert indices.dtype == torch.int32
    assert torch.equal(indices.long(), wanted)
    assert torch.equal(found, x[wanted])


def test_topk_with_feedback_keeps_the_rest() -> None:
    g, r = values(5000), values(5000, seed=1)
    both, before = g + r, g.clone()
    found, indices = kernels.topk_feedback(g, r, 100)
    assert torch.equal(found, both[indices.long()])
    both[indices.long()] = 0
    assert torch.equal(r, both)
    assert torch.equal(g, before)


@pytest.mark.parametrize("n", SIZES)
def test_casts_are_torch_s(n: int) -> None:
    x = values(n)
    assert torch.equal(kernels.encode_fp16(x, 1024.0), (x * 1024).to(torch.float16))
    assert torch.equal(kernels.encode_bf16(x), x.to(torch.bfloat16))
    half = x.to(torch.float16)
    assert torch.equal(kernels.decode_fp16(half, 0.5), half.float() * 0.5)
    total = kernels.reduce_bf16([x.to(torch.bfloat16)] * 2, [0.5, 0.5])
    assert torch.equal(total, x.to(torch.bfloat16))
    mine, other = half.clone(), half.clone()
    assert kernels.reduce_fp16([mine, other], [0.5, 0.25], out=mine) is mine
    assert torch.equal(mine, (half.float() * 0.75).to(torch.float16))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    ("encode", "decode", "block", "most"),
    [
        (kernels.encode_int8, kernels.decode_int8, 128, 127),
        (kernels.encode_int4, kernels.decode_int4, 64, 7),
    ],
)
def test_integers_are_within_half_a_step(
    n: int,
    encode: Callable[..., object],
    decode: Callable[..., torch.Tensor],
    block: int,
    most: int,
) -> None:
    x, residual = values(n), torch.zeros(n)
    integers, scales = encode(x, residual)  # type: ignore[misc]
    back = decode(integers, scales, n)
    step = scales.repeat_interleave(block)[:n]
    assert ((back - x).abs() <= step * 0.5001).all()
    assert torch.equal(residual, x - back)
    padded = torch.nn.functional.pad(x, (0, -n % block)).view(-1, block)
    wanted = padded.abs().amax(dim=1) / most
    if most == 127:
        wanted = wanted.to(torch.bfloat16).float()
    assert torch.allclose(scales, wanted, rtol=1e-6, atol=0)


def test_a_sum_of_integers_is_rounded_once() -> None:
    n = 1000
    encoded = [kernels.encode_int8(values(n, seed)) for seed in range(3)]
    total = kernels.decode_int8(*kernels.reduce_int8(encoded, n, 1 / 3), n)
    exact = sum(kernels.decode_int8(*one, n) for one in encoded) / 3
    assert (total - exact).abs().max() <= exact.abs().max() / 127 * 0.51


def test_the_passes_of_powersgd_are_torch_s() -> None:
    gradient, residual = values(60 * 40).view(60, 40), values(60 * 40, 1).view(60, 40)
    wanted, q = gradient + residual, torch.randn(3, 40)
    p = kernels.project_rows(gradient, residual, q)
    assert torch.equal(residual, wanted)
    assert torch.allclose(p, wanted @ q.T, rtol=1e-4, atol=1e-6)
    kernels.orthogonalise(p)
    assert torch.allclose(p.T @ p, torch.eye(3), atol=1e-5)
    own = kernels.project_cols(residual, p)
    assert torch.allclose(own, p.T @ wanted, rtol=1e-4, atol=1e-6)
    mean = kernels.reconstruct(p, 2 * own, residual, own)
    assert torch.allclose(mean, 2 * p @ own, rtol=1e-4, atol=1e-7)
    assert torch.allclose(residual, wanted - p @ own, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernels.topk(torch.ones(2, dtype=torch.float64), 1), "x is Double; allowed: a"),
        (lambda: kernels.topk(torch.ones(4, 4).t(), 1), "x is non-contiguous Float"),
        (lambda: kernels.topk(torch.ones(4), -1), "k=-1 is out of range"),
        (
            lambda: kernels.encode_bf16(torch.ones(4), torch.ones(3)),
            "residual has 3 values where 4 are needed",
        ),
        (
            lambda: kernels.decode_int8(torch.ones(3, dtype=torch.int8), torch.ones(1), 4),
            "values has 3 values where 4 are needed",
        ),
        (
            lambda: kernels.decode_int4(torch.ones(32, dtype=torch.uint8), torch.ones(2), 64),
            "scales has 2 values where 1 are needed",
        ),
        (lambda: kernels.reduce_fp16([], []), "at least one"),
        (
            lambda: kernels.reduce_fp16([torch.ones(4).half()], [1.0], torch.ones(3).half()),
            "out has 3 values where 4 are needed",
        ),
        (lambda: kernels.orthogonalise(torch.ones(40, 17)), "rank of p=17 is out of range"),
        (
            lambda: kernels.project_cols(torch.ones(4, 5), torch.ones(3, 2)),
            "p is 3 x 2 where 4 x 2 is needed",
        ),
        (lambda: kernels.set_threads(0), "0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_threads_change_no_bit() -> None:
    x = values(1_000_000)
    one = kernels.encode_int8(x)
    kernels.set_threads(2)
    try:
        assert kernels.threads() == 2
        two = kernels.encode_int8(x)
    finally:
        kernels.set_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert kernels.simd_level() in ("scalar", "avx2", "avx512")
