"""Size and bandwidth of a collective by the rules of nccl-tests (``doc/PERFORMANCE.md``).

algbw = size / time. busbw = algbw * factor is what one link carries, comparable between
operations and numbers of ranks. Size is what the operation is about, not what a rank sends:
the whole buffer of all_reduce, all ranks' parts together for all_gather and reduce_scatter.
"""

from __future__ import annotations

import math

import numpy as np

from commprof.trace.columns import Ints
from commprof.trace.schema import OPS

_FROM_INPUT = ("reduce_scatter", "all_to_all", "send")
_FROM_OUTPUT = ("all_gather", "recv")


def sizes_bytes(op: Ints, bytes_in: Ints, bytes_out: Ints, group_size: Ints) -> Ints:
    """Size of each call; ``group_size`` is the number of ranks of its group."""
    size = np.maximum(bytes_in, bytes_out)
    for code, name in enumerate(OPS):
        rows = op == code
        if name.startswith(_FROM_INPUT):
            size[rows] = bytes_in[rows]
        elif name.startswith(_FROM_OUTPUT):
            size[rows] = bytes_out[rows]
        elif name == "gather":
            size[rows] = bytes_in[rows] * group_size[rows]
        elif name == "scatter":
            size[rows] = bytes_out[rows] * group_size[rows]
    return size


def bus_factor(op: str, ranks: int) -> float:
    """busbw / algbw; NaN where nccl-tests has no rule, or one rank moves nothing."""
    if op in ("broadcast", "reduce", "send", "recv", "recv_any_source"):
        return 1.0
    if ranks < 2:
        return math.nan
    if op.startswith("all_reduce"):
        return 2 * (ranks - 1) / ranks
    if op.startswith(("all_gather", "reduce_scatter", "all_to_all")) or op in ("gather", "scatter"):
        return (ranks - 1) / ranks
    return math.nan
