"""Compares the times of compression kernels with reads, copies and torch code, on one thread."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from commprof import _native
from commprof.tune.compressors import kernels

Call = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """Two calls whose times are compared."""

    what: str
    size_mb: int
    ours: Call
    other: Call
    #: "1.2 at most" is a limit of ours / other, "3 at least" of other / ours; empty if no limit.
    demand: str


@dataclass(frozen=True)
class Figures:
    """Median times, and the ratio ours / other of each round."""

    row: Row
    ours_ms: float
    other_ms: float
    ratios: list[float]


def simd_level() -> str:
    """Returns the name of the instruction set in use."""
    assert _native.tune_error is None
    return _native.tune.simd_level()


def gradient(numel: int, seed: int = 0) -> torch.Tensor:
    """Returns normally distributed values; 12 parts have scales from 1e-5 to 1e-2, like layers."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.logspace(-5, -2, 12).repeat_interleave(-(-numel // 12))[:numel]
    return torch.randn(numel, generator=generator) * scales


def rows(size_mb: int) -> Iterator[Row]:
    """Yields all comparisons at one size."""
    n = int(size_mb * 1e6 / 4)
    x, r, y = gradient(n), gradient(n, 1), torch.empty(n)
    k = n // 100
    read = _faster_read(x)

    def feedback() -> None:
        kernels.topk_feedback(x, r, k)

    at_least = "50 at least"
    yield Row(
        "top-K 1 % : torch.topk", size_mb, lambda: kernels.topk(x, k), _torch_topk(x, k), at_least
    )
    if size_mb >= 25:
        limit = "2.0 at most" if size_mb < 100 else "1.3 at most"
        yield Row("top-K 1 % : one read", size_mb, lambda: kernels.topk(x, k), read, limit)
        yield Row(
            "top-K 1 % + feedback : r += g",
            size_mb,
            feedback,
            lambda: r.add_(x, alpha=1e-9),
            "1.8 at most",
        )
        yield Row(
            "top-K 1 % + feedback : torch code",
            size_mb,
            feedback,
            _torch_feedback(x, r, k),
            "30 at least",
        )
        yield Row(
            "int8 + feedback : memcpy",
            size_mb,
            lambda: kernels.encode_int8(x, r),
            lambda: y.copy_(x),
            "1.3 at most",
        )
        yield Row(
            "int8 + feedback : torch code",
            size_mb,
            lambda: kernels.encode_int8(x, r),
            _torch_int8(x, r),
            "6 at least",
        )
    yield Row(
        "fp16 with scale : memcpy",
        size_mb,
        lambda: kernels.encode_fp16(x, 1024.0),
        lambda: y.copy_(x),
        "",
    )


def measure(row: Row, seconds: float) -> Figures:
    """Measures both calls in turns, in random order, for the given time and at least 7 rounds."""
    times: dict[str, list[float]] = {"ours": [], "other": []}
    calls = {"ours": row.ours, "other": row.other}
    order = random.Random(0)
    for call in calls.values():
        call()
    end = time.perf_counter() + seconds
    while len(times["ours"]) < 7 or time.perf_counter() < end:
        for name in order.sample(sorted(calls), 2):
            begin = time.perf_counter()
            calls[name]()
            times[name].append(time.perf_counter() - begin)
    ratios = [a / b for a, b in zip(times["ours"], times["other"], strict=True)]
    return Figures(
        row, statistics.median(times["ours"]) * 1e3, statistics.median(times["other"]) * 1e3, ratios
    )


def table(figures: list[Figures]) -> list[list[Any]]:
    """Returns rows for ``tabulate``; the ratios are those that the demands limit."""
    out = []
    for f in figures:
        turned = f.row.demand.endswith("least")
        ratios = sorted(1 / x if turned else x for x in f.ratios)
        low, middle, high = (ratios[int(q * (len(ratios) - 1))] for q in (0.25, 0.5, 0.75))
        limit = float(f.row.demand.split()[0]) if f.row.demand else None
        held = "" if limit is None else "yes" if (middle >= limit) == turned else "NO"
        out.append(
            [
                f.row.what,
                f.row.size_mb,
                f.ours_ms,
                f.other_ms,
                middle,
                low,
                high,
                f.row.demand,
                held,
            ]
        )
    return out


HEADERS = ["ours : other", "MB", "ours ms", "other ms", "ratio", "25 %", "75 %", "demand", "held"]


def _faster_read(x: torch.Tensor) -> Call:
    """Returns a call that reads the buffer once, with the faster of two torch functions."""
    calls: list[Call] = [lambda: torch.dot(x, x), lambda: x.sum()]
    times = []
    for call in calls:
        call()
        begin = time.perf_counter()
        for _ in range(5):
            call()
        times.append(time.perf_counter() - begin)
    return calls[times.index(min(times))]


def _torch_topk(x: torch.Tensor, k: int) -> Call:
    return lambda: torch.topk(x.abs(), k, sorted=False)


def _torch_feedback(x: torch.Tensor, r: torch.Tensor, k: int) -> Call:
    def call() -> None:
        total = x + r
        places = torch.topk(total.abs(), k, sorted=False).indices
        values = total[places]
        r.copy_(total)
        r[places] = 0
        values.to(torch.float16)

    return call


def _torch_int8(x: torch.Tensor, r: torch.Tensor) -> Call:
    n = x.numel() // 256 * 256
    blocks, rest = x[:n].view(-1, 128), r[:n].view(-1, 128)

    def call() -> None:
        total = blocks + rest
        scale = total.abs().amax(dim=1, keepdim=True) / 127
        quantised = (total / scale).round().clamp(-127, 127).to(torch.int8)
        rest.copy_(total - quantised * scale)

    return call
