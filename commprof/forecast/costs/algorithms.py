"""Number of messages and bytes of one rank in each collective's algorithm.

A rank sends ``steps`` messages one after the other. ``sent`` is the number of bytes that the rank
sends, divided by the size of the collective. ``reduced`` is the number of bytes that the rank adds
up, divided by the size of the collective. The size is defined as in nccl-tests
(``commprof/analysis/collectives/traffic.py``).

All-reduce, reduce-scatter, all-gather and all-to-all are the ring and pairwise algorithms of
Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH"
(2005), section 4. gloo (see its ``algorithms.md``) and NCCL use these algorithms for large sizes.
Broadcast is gloo's binomial tree. gloo's reduce is a ring reduce-scatter, after which the root
gathers the parts. torch runs reduce-scatter on gloo as an all-reduce.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Operations whose cost can be computed for any number of ranks.
OPERATIONS = (
    *("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"),
    *("all_to_all", "gather", "scatter", "send_recv", "barrier"),
)

_SYNONYMS = {
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}


@dataclass(frozen=True)
class Work:
    """Number of messages and bytes of one rank in one collective."""

    #: Number of successive messages.
    steps: int
    #: Bytes sent, divided by the size of the collective.
    sent: float
    #: Bytes added up, divided by the size of the collective.
    reduced: float

    def step_bytes(self, size_bytes: float) -> float:
        """Returns the bytes that a rank sends in one step; 0 if there are no steps."""
        return self.sent * size_bytes / self.steps if self.steps else 0.0


def canonical(op: str) -> str:
    """Returns the common name of torch's variants of an operation."""
    return _SYNONYMS.get(op, op)


def work(op: str, ranks: int, backend: str = "gloo") -> Work:
    """Returns the number of messages and bytes of one rank in a collective.

    Raises:
        ValueError: the operation is not one of ``OPERATIONS``, or ``ranks`` is below 1.
    """
    if ranks < 1:
        raise ValueError(f"{ranks} ranks (allowed: 1 or more)")
    if op not in OPERATIONS:
        raise ValueError(f"unknown operation {op!r} (allowed: {', '.join(OPERATIONS)})")
    others, share = ranks - 1, (ranks - 1) / ranks
    rounds = math.ceil(math.log2(ranks))
    if op == "all_reduce" or (op == "reduce_scatter" and backend == "gloo") or op == "reduce":
        return Work(2 * others, 2 * share, share)
    if op == "reduce_scatter":
        return Work(others, share, share)
    if op in ("all_gather", "all_to_all", "gather", "scatter"):
        return Work(others, share, 0.0)
    if op == "broadcast":
        return Work(rounds, float(rounds), 0.0)
    if op == "send_recv":
        return Work(1, 1.0, 0.0) if others else Work(0, 0.0, 0.0)
    return Work(rounds, 0.0, 0.0)  # barrier
