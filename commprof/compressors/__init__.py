"""Gradient compressors for DDP: ``commprof.attach(ddp, hook=commprof.compressors.topk(0.01))``.

Each function makes one; ``docs/compressors.md`` says what they cost and when they pay. Common
arguments:

- ``feedback``: keep what was not sent and add it to the next step's gradients; None: as is best
  for the scheme (on for int4, topk and powersgd).
- ``start_step``: plain means in the steps before.
- ``measure_every``: in every so manyth step the trace gets each bucket's error; 0: never.

All of them raise UsageError for a value out of range, naming it and what is allowed.
"""

from __future__ import annotations

from commprof.compressors.compressor import SCHEMES, Compressor, merge_states, parse

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
    """The fp32 mean, by the same thread and group as the others: the baseline for them."""
    return Compressor("none", {}, measure_every=measure_every)


def fp16(
    *, feedback: bool | None = None, start_step: int = 0, measure_every: int = 0
) -> Compressor:
    """binary16 with a power-of-two scale per rank and bucket; sums in fp32, rounded once."""
    return _make("fp16", {}, feedback, start_step, measure_every)


def bf16(
    *, feedback: bool | None = None, start_step: int = 0, measure_every: int = 0
) -> Compressor:
    """bfloat16; sums in fp32, rounded once."""
    return _make("bf16", {}, feedback, start_step, measure_every)


def int8(
    *, feedback: bool | None = None, start_step: int = 0, measure_every: int = 0
) -> Compressor:
    """8-bit integers with one scale per 128 values; sums in fp32, rounded once."""
    return _make("int8", {}, feedback, start_step, measure_every)


def int4(
    *, feedback: bool | None = None, start_step: int = 0, measure_every: int = 0
) -> Compressor:
    """4-bit integers with one scale per 64 values; sums in fp32, rounded once."""
    return _make("int4", {}, feedback, start_step, measure_every)


def topk(
    ratio: float = 0.01,
    *,
    feedback: bool | None = None,
    start_step: int = 0,
    measure_every: int = 0,
) -> Compressor:
    """The share ``ratio`` of a bucket's values that is largest in magnitude, exactly."""
    return _make("topk", {"ratio": ratio}, feedback, start_step, measure_every)


def powersgd(
    rank: int = 4,
    *,
    feedback: bool | None = None,
    start_step: int = 0,
    measure_every: int = 0,
    seed: int = 0,
) -> Compressor:
    """Each matrix as two factors of ``rank`` columns (Vogels et al., NeurIPS 2019)."""
    return _make("powersgd", {"rank": rank}, feedback, start_step, measure_every, seed)


def hierarchical(*, measure_every: int = 0) -> Compressor:
    """The fp32 mean through shared memory within each host and gloo between hosts.

    ``parse("int8:hierarchical=1")`` compresses what goes between hosts as well.
    """
    return Compressor("hierarchical", {}, measure_every=measure_every)


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
