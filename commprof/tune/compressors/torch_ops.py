"""Compresses by torch operations, for gradients on a GPU or if the native module is missing.

There are fewer schemes than in the native module, and results may differ from its results in the
last bits. Every rank sums the encodings of all ranks in rank order, so all ranks get the same bits.

A callback of a future must not wait for an incomplete future: this would deadlock gloo's threads.
On a GPU, a future is complete once its collective was launched. A wait for such a future blocks the
current stream, but not the thread.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist

from commprof import _native
from commprof.errors import CommprofError
from commprof.tune.compressors.compressor import SCHEMES, Compressor

Tensor = Any  # torch.Tensor, which the type checker does not know
#: ``Encode`` encodes a bucket for sending; ``Decode`` adds one rank's encoding to the sum.
Encode = Callable[[Tensor], "tuple[Tensor, ...]"]
Decode = Callable[["tuple[Tensor, ...]", Tensor], None]

_BLOCK = 128
#: fp16's scales are powers of two with exponents from ``_LEAST_EXPONENT`` to ``_LARGEST_EXPONENT``.
#: A gradient whose magnitude is above ``_LARGEST_VALUE`` counts as not finite. These are the rules
#: of csrc/tune/compress/codecs/half_scale.h.
_LEAST_EXPONENT, _LARGEST_EXPONENT = -66, 100
_LARGEST_VALUE = 2.0**80
#: fp32's layout: bits after the exponent, and the exponent that is stored for 2^0.
_FRACTION_BITS, _BIAS = 23, 127
_NATIVE_OPTIONS = ("checksum", "hierarchical", "measure_every")


def encode_cast(dtype: Any) -> Encode:
    """Makes an encoder that casts values to ``dtype``."""

    def encode(x: Tensor) -> tuple[Tensor, ...]:
        return (x.to(dtype),)

    return encode


def add_cast(payload: tuple[Tensor, ...], total: Tensor) -> None:
    """Decodes one rank's output of ``encode_cast``'s encoder, and adds the values to ``total``."""
    total.add_(payload[0])


def encode_fp16(x: Tensor) -> tuple[Tensor, ...]:
    """Multiplies the values by a scale; returns them as float16, and the scale as fp32 [1].

    The scale is a power of two that moves the largest magnitude, if possible, to between 2^14 and
    2^15. The scale is NaN if a value is not finite, or if a magnitude is above 2^80.
    """
    largest = x.abs().amax().view(1)
    exponent = (largest.view(torch.int32) >> _FRACTION_BITS) - _BIAS
    scale_exponent = (14 - exponent).clamp(_LEAST_EXPONENT, _LARGEST_EXPONENT)
    # The scale is made from bits, because a device's power function may be inexact.
    scale = ((scale_exponent + _BIAS) << _FRACTION_BITS).view(torch.float32)
    scale = torch.where(largest <= _LARGEST_VALUE, scale, torch.full_like(scale, torch.nan))
    return (x * scale).to(torch.float16), scale


def add_fp16(payload: tuple[Tensor, ...], total: Tensor) -> None:
    """Decodes one rank's output of ``encode_fp16``, and adds the values to ``total``."""
    values, scale = payload
    total.add_(values.float() / scale)


def encode_int8(x: Tensor) -> tuple[Tensor, ...]:
    """Returns each value as an 8-bit integer, and a bf16 scale for every 128 values."""
    padded = torch.nn.functional.pad(x, (0, -x.numel() % _BLOCK)).view(-1, _BLOCK)
    scales = (padded.abs().amax(dim=1) / 127).to(torch.bfloat16)
    quotients = padded / scales.float().clamp(min=torch.finfo(torch.float32).tiny)[:, None]
    # A value that is not finite becomes 0 here. The scale of its block is then infinite or NaN.
    integers = quotients.nan_to_num(0.0).round().clamp(-127, 127).to(torch.int8)
    return integers.view(-1)[: x.numel()], scales


def add_int8(payload: tuple[Tensor, ...], total: Tensor) -> None:
    """Decodes one rank's output of ``encode_int8``, and adds the values to ``total``."""
    integers, scales = payload
    total.addcmul_(integers.float(), scales.float().repeat_interleave(_BLOCK)[: total.numel()])


def encode_topk(ratio: float) -> Encode:
    """Makes an encoder that returns the values of largest magnitude, and their int32 indices.

    ``ratio`` is the fraction of the values to return. At least one value is returned.
    """

    def encode(x: Tensor) -> tuple[Tensor, ...]:
        count = max(1, round(ratio * x.numel()))
        indices = torch.topk(x.abs(), count, sorted=False).indices
        return x[indices], indices.to(torch.int32)

    return encode


def add_topk(payload: tuple[Tensor, ...], total: Tensor) -> None:
    """Decodes one rank's output of ``encode_topk``'s encoder, and adds the values to ``total``."""
    values, indices = payload
    total.index_add_(0, indices.long(), values.float())


def lacks(compressor: Compressor) -> str:
    """Returns why a compressor cannot run as torch operations; empty if it can."""
    needs = "needs the native module and gradients on the CPU"
    why = _native.tune_error or "gradients on a GPU"
    if compressor.scheme not in _SCHEMES:
        return (
            f"the compressor {compressor.scheme!r} {needs}; use one of "
            f"{', '.join(_SCHEMES)} instead. Why the compressor cannot run: {why}"
        )
    given = {**compressor.options, "measure_every": compressor.measure_every}
    for name in _NATIVE_OPTIONS:
        if given.get(name):
            return (
                f"the option {name!r} of the compressor {compressor.label!r} {needs}; leave the "
                f"option out. Why the option cannot be used: {why}"
            )
    return ""


def _scheme(compressor: Compressor) -> tuple[Encode, Decode]:
    if reason := lacks(compressor):
        raise CommprofError(reason)
    return _SCHEMES[compressor.scheme](compressor.options.get("ratio", 0.01))


#: Functions that make encoder and decoder, by scheme. Their argument is topk's ratio.
_SCHEMES: dict[str, Callable[[float], tuple[Encode, Decode]]] = {
    "none": lambda _: (encode_cast(torch.float32), add_cast),
    "fp16": lambda _: (encode_fp16, add_fp16),
    "bf16": lambda _: (encode_cast(torch.bfloat16), add_cast),
    "int8": lambda _: (encode_int8, add_int8),
    "topk": lambda ratio: (encode_topk(ratio), add_topk),
}


def _suits(buffer: Tensor) -> bool:
    return bool(buffer.dtype == torch.float32 and buffer.layout == torch.strided)


class TorchOps:
    """DDP communication hook that compresses with torch operations."""

    def __init__(self, group: Any, parameters: list[Any], compressor: Compressor) -> None:
        """Makes the hook for a model's process group and its parameters, in the model's order.

        Raises:
            CommprofError: the scheme or an option is not available as torch operations.
        """
        self.step = 0
        self._group = group
        self._world_size = group.size()
        self._encode, self._add = _scheme(compressor)
        self._start_step = int(compressor.options.get("start_step", 0))
        standard = {option.name: option.standard for option in SCHEMES[compressor.scheme].options}
        standard.update(compressor.options)
        self._feedback = bool(standard.get("feedback", 0))
        self._is_plain = compressor.scheme == "none"
        self._number = {id(parameter): number for number, parameter in enumerate(parameters)}
        self._devices = [parameter.device for parameter in parameters]
        #: Residuals and last sent values, by parameter index. The index of a bucket cannot be the
        #: key: DDP reuses it for other parameters when it rebuilds buckets.
        self._residuals: dict[int, Tensor] = {}
        self._sent: dict[int, Tensor] = {}

    def __call__(self, _: object, bucket: Any) -> Any:
        """Runs the hook; returns a future of the bucket's mean."""
        step = self.step
        if bucket.is_last():
            self.step += 1
        if bucket.index() == 0:
            self._sent.clear()
        buffer = bucket.buffer()
        plain = self._is_plain or step < self._start_step or not _suits(buffer)
        if plain or self._world_size == 1 or not buffer.numel():
            mean = self._group.allreduce([buffer.mul_(1.0 / self._world_size)])
            return mean.get_future().then(lambda done: done.value()[0])
        payload, keep = self._encoded(buffer, bucket.parameters())
        gathered = [[torch.empty_like(part) for _ in range(self._world_size)] for part in payload]
        works = [
            dist.all_gather(out, part.contiguous(), group=self._group, async_op=True)
            for out, part in zip(gathered, payload, strict=True)
        ]

        futures = [work.get_future() for work in works]

        def mean_of_all(together: Any) -> Tensor:
            # Raises if an all-gather failed; the futures below may then be incomplete.
            together.wait()
            # `together` holds no tensors, so only these waits make the GPU's stream wait.
            for future in futures:
                future.wait()
            buffer.zero_()
            # 0, or NaN if some rank's gradients are not finite: then the whole mean becomes NaN.
            poison = sum((x * 0).sum() for x in chain(*gathered) if x.is_floating_point())
            for one in zip(*gathered, strict=True):
                self._add(one, buffer)
            keep(poison == 0)
            return buffer.mul_(1.0 / self._world_size).add_(poison)

        return torch.futures.collect_all(futures).then(mean_of_all)

    def _encoded(
        self, buffer: Tensor, parameters: list[Any]
    ) -> tuple[tuple[Tensor, ...], Callable[[Tensor], None]]:
        """Returns the encoding of a bucket, and a function that updates the residuals.

        Call the function after the exchange. Its argument is a boolean tensor: True if the values
        of all ranks are finite.
        """
        if not self._feedback:
            return self._encode(buffer), lambda _: None
        numbers = [self._number[id(parameter)] for parameter in parameters]
        sizes = [parameter.numel() for parameter in parameters]
        # DDP drops the mean of a parameter that no rank used, and a sent residual would be lost. So
        # this rank sends no residual of a parameter if its own gradient of the parameter is zero.
        used = torch.stack([part.any() for part in buffer.split(sizes)]).repeat_interleave(
            torch.tensor(sizes, device=buffer.device), output_size=buffer.numel()
        )
        before = torch.cat(
            [
                self._residuals[number] if number in self._residuals else buffer.new_zeros(size)
                for number, size in zip(numbers, sizes, strict=True)
            ]
        )
        wanted = buffer + before * used
        payload = self._encode(wanted)

        def keep(finite: Tensor) -> None:
            sent = torch.zeros_like(wanted)
            self._add(payload, sent)
            after = torch.where(finite, wanted - sent + before * ~used, before)
            sent = torch.where(finite, sent, torch.zeros_like(sent))
            for number, rest, gone in zip(
                numbers, after.split(sizes), sent.split(sizes), strict=True
            ):
                self._residuals[number], self._sent[number] = rest, gone

        return payload, keep

    def state(self) -> list[tuple[int, str, Tensor]]:
        """Returns (parameter index, "residual", values) per parameter, sorted by index."""
        return [(number, "residual", r.clone()) for number, r in sorted(self._residuals.items())]

    def load_state(self, state: list[tuple[int, str, Tensor]]) -> None:
        """Replaces all residuals by copies of the residuals in ``state``."""
        self._residuals = {
            number: values.to(self._devices[number], copy=True).flatten()
            for number, _, values in state
        }
        self._sent.clear()

    def scale_residuals(self, factor: float) -> None:
        """Multiplies the residuals by the factor by which the loss scale changed."""
        for kept in (*self._residuals.values(), *self._sent.values()):
            kept.mul_(factor)

    def step_skipped(self) -> None:
        """Adds the sent values of the last step to the residuals again."""
        for number, sent in self._sent.items():
            self._residuals[number] = self._residuals[number] + sent
        self._sent.clear()

    def stop(self, patience_s: float) -> None:
        """Does nothing: there is no thread."""
