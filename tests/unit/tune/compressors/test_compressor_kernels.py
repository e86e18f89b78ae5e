from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from commprof import _native
from commprof.tune.compressors import kernels

pytestmark = pytest.mark.skipif(_native.native is None, reason="no native module")

SIZES = (0, 1, 65, 4097, 70_001)


def values(n: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scale = 10.0 ** (torch.rand(n, generator=generator) * 3 - 5)
    return torch.randn(n, generator=generator) * scale


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0, 2.0])
def test_topk_equals_torch_topk(n: int, share: float) -> None:
    x, k = values(n), int(share * n)
    found, indices = kernels.topk(x, k)
    wanted = torch.topk(x.abs(), min(k, n)).indices.sort().values
    assert indices.dtype == torch.int32
    assert torch.equal(indices.long(), wanted)
    assert torch.equal(found, x[wanted])


def test_topk_with_feedback_keeps_the_unsent_values_in_the_residual() -> None:
    g, r = values(5000), values(5000, seed=1)
    both, before = g + r, g.clone()
    found, indices = kernels.topk_feedback(g, r, 100)
    assert torch.equal(found, both[indices.long()])
    both[indices.long()] = 0
    assert torch.equal(r, both)
    assert torch.equal(g, before)


@pytest.mark.parametrize("n", SIZES)
def test_fp16_kernels_equal_torch_casts(n: int) -> None:
    x = values(n)
    assert torch.equal(kernels.encode_fp16(x, 1024.0), (x * 1024).to(torch.float16))
    half = x.to(torch.float16)
    mine, other = half.clone(), half.clone()
    assert kernels.reduce_fp16([mine, other], [0.5, 0.25], out=mine) is mine
    assert torch.equal(mine, (half.float() * 0.75).to(torch.float16))


@pytest.mark.parametrize("n", SIZES)
def test_int8_rounding_errors_are_within_half_a_step(n: int) -> None:
    x, residual = values(n), torch.zeros(n)
    integers, scales = kernels.encode_int8(x, residual)
    step = scales.repeat_interleave(128)[:n]
    back = integers * step
    assert ((back - x).abs() <= step * 0.5001).all()
    assert torch.equal(residual, x - back)
    padded = torch.nn.functional.pad(x, (0, -n % 128)).view(-1, 128)
    wanted = (padded.abs().amax(dim=1) / 127).to(torch.bfloat16).float()
    assert torch.allclose(scales, wanted, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernels.topk(torch.ones(2, dtype=torch.float64), 1), "x is Double; allowed: a"),
        (lambda: kernels.topk(torch.ones(4, 4).t(), 1), "x is non-contiguous Float"),
        (lambda: kernels.topk(torch.ones(4), -1), "k=-1 is out of range"),
        (
            lambda: kernels.encode_int8(torch.ones(4), torch.ones(3)),
            "residual has 3 values where 4 are needed",
        ),
        (lambda: kernels.reduce_fp16([], []), "at least one"),
        (
            lambda: kernels.reduce_fp16([torch.ones(4).half()], [1.0], torch.ones(3).half()),
            "out has 3 values where 4 are needed",
        ),
    ],
)
def test_wrong_kernel_arguments_are_refused_by_name(
    call: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
