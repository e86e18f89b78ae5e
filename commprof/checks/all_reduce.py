"""Checks that all-reduce gives correct sums, with the same bits on all ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
import torch.distributed as dist

from commprof.analysis.checks.outcome import FAIL, PASS, Outcome
from commprof.checks.ranks import Ranks
from commprof.text import with_ranks

NAME = "all-reduce"
_COUNTS = (1, 1000, 1_000_003)
_PERIOD = 97
_WEIGHTS = 6


def measure(ranks: Ranks) -> tuple[list[str], str]:
    """Returns a description of each wrong sum, and a hash of a sum of random numbers."""
    wrong = []
    for dtype in (torch.int64, torch.float32):
        for count in _COUNTS:
            pattern = (torch.arange(count) % _PERIOD).to(dtype)
            values = pattern * _weight(ranks.rank)
            dist.all_reduce(values)
            # fp32 is exact for whole numbers below 2^24. This suffices for 49,932 ranks.
            expected = pattern * sum(map(_weight, range(ranks.world_size)))
            different = int((values != expected).sum())
            if different:
                kind = str(dtype).removeprefix("torch.")
                wrong.append(f"{different} of {count} {kind} elements")
    random = torch.Generator().manual_seed(ranks.rank)
    values = torch.randn(100_003, generator=random)
    dist.all_reduce(values)
    return wrong, hashlib.sha256(values.numpy().tobytes()).hexdigest()


def _weight(rank: int) -> int:
    """Returns a small factor for a rank's values, so that sums over many ranks stay exact."""
    return rank % _WEIGHTS + 1


def judge(values: Sequence[tuple[list[str], str]]) -> Outcome:
    """Fails if a sum is wrong, or if the ranks' sums differ in any bit."""
    wrong = with_ranks((rank, ", ".join(what)) for rank, (what, _) in enumerate(values) if what)
    if wrong:
        return Outcome(
            NAME,
            FAIL,
            f"wrong sums on {'; '.join(wrong)}",
            "training results cannot be trusted: check memory and network of the ranks named",
        )
    if len({digest for _, digest in values}) > 1:
        return Outcome(
            NAME,
            FAIL,
            "the ranks have different bits in the same sum",
            "the ranks' copies of a model would drift apart: use the same build of torch and the "
            "same kind of processor on all ranks",
        )
    return Outcome(
        NAME, PASS, f"{2 * len(_COUNTS)} sums are exact, with the same bits on all ranks"
    )
