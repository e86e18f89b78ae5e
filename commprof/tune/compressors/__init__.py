"""Gradient compressors for DDP: ``commprof.attach(ddp, hook=commprof.compressors.topk(0.01))``.

Each function makes a compressor. ``docs/compressors.md`` says what compressors cost, and when they
pay off.

Common arguments:

- ``feedback``: True turns on error feedback: values that were not sent are added to the next step's
  gradients. None stands for the scheme's default (on for int4, topk and powersgd).
- ``start_step``: the first step with compression; earlier steps send uncompressed gradients.
- ``measure_every``: number of steps from one measurement of the compression error to the next; 0
  turns the measurement off.

All functions raise UsageError for a value out of range; the message names the allowed range.
"""

from __future__ import annotations

from collections.abc import Callable

from commprof.tune.compressors.compressor import SCHEMES, Compressor, merge_states, parse

__all__ = [
    "Compressor",
    "bf16",
    "fp16",
    "hierarchical",
    "int4",
    "int8",
    "merge_states",
    "none",
    "parse",
    "powersgd",
    "topk",
]


def none(*, measure_every: int = 0) -> Compressor:
    """Makes a hook without compression, as a baseline.

    The hook averages the gradients in fp32, with the same kind of thread and process group as a
    compressor.
    """
    return Compressor("none", {}, measure_every=measure_every)


def fp16(
    *, feedback: bool | None = None, start_step: int = 0, measure_every: int = 0
) -> Compressor:
    """Makes a compressor that sends float16, scaled by a power of two.

    Each rank chooses a scale for each piece of a bucket. Sums are in fp32 and rounded once.
    """
    return _make("fp16", {}, feedback, start_step, measure_every)


def bf16(
    *, feedback: bool | None = None, start_step: int = 0, measure_every: int = 0
) -> Compressor:
    """Makes a compressor that sends bfloat16; sums are in fp32 and rounded once."""
    return _make("bf16", {}, feedback, start_step, measure_every)


def int8(
    *, feedback: bool | None = None, start_step: int = 0, measure_every: int = 0
) -> Compressor:
    """Makes a compressor that sends 8-bit integers, with one scale per 128 values.

    Sums are in fp32 and rounded once.
    """
    return _make("int8", {}, feedback, start_step, measure_every)


def int4(
    *, feedback: bool | None = None, start_step: int = 0, measure_every: int = 0
) -> Compressor:
    """Makes a compressor that sends 4-bit integers, with one scale per 64 values.

    Sums are in fp32 and rounded once.
    """
    return _make("int4", {}, feedback, start_step, measure_every)


def topk(
    ratio: float = 0.01,
    *,
    feedback: bool | None = None,
    start_step: int = 0,
    measure_every: int = 0,
) -> Compressor:
    """Makes a compressor that sends only the values of largest magnitude in each bucket.

    ``ratio`` is the fraction of the values to send.
    """
    return _make("topk", {"ratio": ratio}, feedback, start_step, measure_every)


def powersgd(
    rank: int = 4,
    *,
    feedback: bool | None = None,
    start_step: int = 0,
    measure_every: int = 0,
    seed: int = 0,
) -> Compressor:
    """Makes a compressor that sends each matrix as two factors of ``rank`` columns.

    The method is that of Vogels et al., NeurIPS 2019.
    """
    return _make("powersgd", {"rank": rank}, feedback, start_step, measure_every, seed)


def hierarchical(*, measure_every: int = 0) -> Compressor:
    """Makes a hook that averages in fp32: by shared memory within hosts, by gloo between hosts.

    ``parse("int8:hierarchical=1")`` also compresses the messages between hosts.
    """
    return Compressor("hierarchical", {}, measure_every=measure_every)


def __getattr__(name: str) -> Callable[..., Compressor]:
    """Returns a function that makes compressors of the scheme ``name``."""
    if name not in SCHEMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def make(*, seed: int = 0, measure_every: int = 0, **options: float | None) -> Compressor:
        return Compressor(name, options, seed=seed, measure_every=measure_every)

    return make


def _make(
    scheme: str,
    options: dict[str, float],
    feedback: bool | None,
    start_step: int,
    measure_every: int,
    seed: int = 0,
) -> Compressor:
    assert scheme in SCHEMES
    common = {"feedback": feedback, "start_step": start_step or None}
    return Compressor(scheme, {**options, **common}, seed=seed, measure_every=measure_every)
