"""Checks that every rank receives the messages that the previous rank sends."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from commprof.analysis.checks.outcome import FAIL, PASS, SKIP, Outcome
from commprof.checks.ranks import Ranks
from commprof.text import named_ranks

NAME = "ring"
_ROUNDS = 20
_FACTOR = 1000


def measure(ranks: Ranks) -> tuple[bool, float]:
    """Passes tokens around all ranks.

    Returns True if this rank received the right tokens, and the mean µs per hop.
    """
    if ranks.world_size == 1:
        return True, 0.0
    token = torch.zeros(1, dtype=torch.int64)
    right, before = True, (ranks.rank - 1) % ranks.world_size
    dist.barrier()
    begin_ns = time.monotonic_ns()
    for number in range(_ROUNDS):
        if ranks.rank == 0:
            token[0] = number * _FACTOR
            dist.send(token, 1)
        dist.recv(token, before)
        right = right and int(token[0]) == number * _FACTOR + before
        if ranks.rank != 0:
            token += 1
            dist.send(token, (ranks.rank + 1) % ranks.world_size)
    hop_us = (time.monotonic_ns() - begin_ns) / 1e3 / _ROUNDS / ranks.world_size
    return right, hop_us


def judge(values: Sequence[tuple[bool, float]]) -> Outcome:
    """Fails if a rank received a wrong token."""
    if len(values) == 1:
        return Outcome(NAME, SKIP, "there is only one rank, so no neighbour")
    wrong = [rank for rank, (right, _) in enumerate(values) if not right]
    if wrong:
        return Outcome(
            NAME,
            FAIL,
            f"{named_ranks(wrong)} received wrong messages",
            "messages from the previous rank arrive damaged: check the link and its driver",
        )
    return Outcome(NAME, PASS, f"{_ROUNDS} rounds, {values[0][1]:.0f} us from rank to rank")
