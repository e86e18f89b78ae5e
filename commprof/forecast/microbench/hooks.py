"""Measures a compressor on one DDP bucket.

The compressor is attached to a DDP model, as in training. The model has one matrix with a given
gradient. So a backward pass contains only DDP's copy into the bucket, and the hook. The forward
pass, which computes nothing, is timed too.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from commprof import satellites
from commprof.capture.attachment import attach
from commprof.forecast.microbench.measure import TimedCall

Tensor = Any  # the type checker does not read torch

_GRADIENTS = 3  # used in turn, so that error feedback does not always see the same gradient
_MOST_COLUMNS = 1024
_BUCKET_CAP_MB = 1 << 20  # large enough for all gradients in one bucket
#: Allowed relative error, because int8 rounds its scales.
_TOLERANCE = 5e-3


class _GivenGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return weight.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient, None


class _OneMatrix(nn.Module):
    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, columns))

    def forward(self, gradient: Tensor) -> Tensor:
        """Returns a zero whose backward pass makes ``gradient`` the weight's gradient."""
        return _GivenGradient.apply(self.weight, gradient)


@dataclass(frozen=True)
class HookBench:
    """One model with its compressor, for one size and one rank."""

    hook: str
    """The compressor, as given to --hook."""
    model: Any
    attachment: Any
    """Attachment of the hook, from `commprof.attach`."""
    gradients: tuple[Tensor, ...]
    """Gradients that successive samples use in turn."""

    def timed(self) -> TimedCall:
        """Returns a forward and backward pass to time.

        The untimed preparation removes the old gradient.
        """
        turn = 0

        def call() -> None:
            self.model(self.gradients[turn % _GRADIENTS]).backward()

        def prepare() -> None:
            nonlocal turn
            turn += 1
            self.model.zero_grad(set_to_none=True)

        return TimedCall(call, prepare)

    def wrong(self, rank: int, world_size: int) -> int:
        """Sends a gradient that the scheme can represent, and counts the wrong elements.

        Call this method before all others, while no residual of another gradient exists.
        """
        pattern = _lossless(self.gradients[0], _ratio(self.hook))
        self.model.zero_grad(set_to_none=True)
        self.model(pattern * (rank + 1)).backward()
        mean = pattern * ((world_size + 1) / 2)
        off = (self.model.module.weight.grad - mean).abs()
        wrong = int((~(off <= _TOLERANCE * mean.abs().max())).sum())
        self.model.zero_grad(set_to_none=True)
        return wrong

    def close(self) -> None:
        """Ends the compressor's thread."""
        self.attachment.set_hook(None)


def make_hook_bench(hook: str, group: Any, count: int, rank: int, device: str) -> HookBench:
    """Makes a hook's bench for a gradient of `count` elements; all ranks of the group call this.

    Raises UsageError for an invalid hook.
    """
    columns = next(n for n in range(min(_MOST_COLUMNS, count), 0, -1) if count % n == 0)
    model = _OneMatrix(count // columns, columns).to(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DDP warns about groups of one rank
        ddp = DistributedDataParallel(
            model, process_group=group, bucket_cap_mb=_BUCKET_CAP_MB, gradient_as_bucket_view=True
        )
    attachment = attach(ddp, hook=satellites.tune().parse_hook(hook))
    generator = torch.Generator().manual_seed(rank)
    gradients = tuple(
        (torch.randn(count, generator=generator) * _scales(count)).view_as(model.weight).to(device)
        for _ in range(_GRADIENTS)
    )
    return HookBench(hook, ddp, attachment, gradients)


def _scales(count: int) -> Tensor:
    """Returns a factor per element, from 1e-5 to 1e-2 in 12 blocks, like layers of a model."""
    return torch.logspace(-5, -2, 12).repeat_interleave(-(-count // 12))[:count]


def _lossless(like: Tensor, ratio: float) -> Tensor:
    """Returns a matrix of 1 and -1, shaped as ``like``, that every compressor can represent.

    If ``ratio`` is below 1, only this share of the elements is not 0, so that topk drops only
    zeros.
    """
    rows = torch.where(torch.arange(like.shape[0]) % 3 == 0, -1.0, 1.0)
    columns = torch.where(torch.arange(like.shape[1]) % 5 == 0, -1.0, 1.0)
    pattern = torch.outer(rows, columns).flatten()
    if ratio < 1:
        pattern[max(1, int(ratio * len(pattern))) :] = 0
    return pattern.view(like.shape).to(like.device)


def _ratio(hook: str) -> float:
    compressor = satellites.tune().parse_hook(hook)
    return compressor.options.get("ratio", 0.01) if compressor.scheme == "topk" else 1.0
