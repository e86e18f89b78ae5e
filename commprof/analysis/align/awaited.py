"""Whom each rank waits for in a collective: all ranks, or fewer where it has a root.

A gloo broadcast goes down a binomial tree, and a sender waits until its receiver is there: a rank
waits for the ranks between it and the root, for the root, and for those that it sends to itself.
gather and scatter are messages between the root and each other rank. A reduce is a ring, as an
all-reduce is. (gloo/broadcast.cc, gather.cc, scatter.cc and reduce.cc; a test compares this with
delayed ranks of a real group.) How other backends pass a broadcast on is not known here, so all of
their ranks count.

In these operations a rank may be done before others arrive, and those did not hold it up. In every
other collective no rank can be done before all have arrived.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.matching import Matching, rank_in_group
from commprof.trace.columns import Collectives, Ints
from commprof.trace.reader import Trace
from commprof.trace.schema import OPS

Mask = npt.NDArray[np.bool_]

ROOTED = tuple(map(OPS.index, ("broadcast", "reduce", "gather", "scatter")))
_BROADCAST, _REDUCE, _GATHER, _SCATTER = ROOTED
#: Pairs of ranks that are compared at a time: 32 MB a column.
_PAIRS = 1 << 22


def last_awaited(
    matching: Matching, traces: Sequence[Trace], tables: Sequence[Collectives], times_ns: Ints
) -> Ints:
    """Per row the row that it waited for last: its own where it came last itself.

    Args:
        matching: of these tables.
        traces: of the ranks, on a common clock.
        tables: their collectives.
        times_ns: when each row arrived, on that clock.

    Returns:
        Numbers of rows over all ranks; -1 where the collective is not complete.
    """
    last = matching.last_row(times_ns)
    op, end_ns, root = (
        np.concatenate([getattr(table, name) for table in tables])
        for name in ("op", "end_ns", "peer")
    )
    rows = np.flatnonzero(np.isin(op, ROOTED) & matching.complete[matching.member])
    if len(rows) == 0:
        return last
    own = np.concatenate([rank_in_group(*each) for each in zip(traces, tables, strict=True)])
    end_ns = np.where(end_ns > 0, end_ns, np.iinfo(np.int64).max)
    rows = rows[np.lexsort((own[rows], matching.member[rows]))]
    _, first, count = np.unique(matching.member[rows], return_index=True, return_counts=True)
    kinds = np.stack([x[rows[first]] for x in (matching.group, op, root)], axis=1)
    for kind in np.unique(kinds, axis=0):
        group = matching.groups[kind[0]]
        mine = first[(kinds == kind).all(axis=1) & (count == group.size)]
        if len(mine) == 0:  # a damaged document may name any size
            continue
        # [collective, rank in the group]
        grid = rows[mine[:, np.newaxis] + np.arange(group.size)]
        needs = needed_ranks(int(kind[1]), int(kind[2]), group.size, group.backend == "gloo")
        for part in np.array_split(grid, math.ceil(grid.size * group.size / _PAIRS)):
            last[part] = _last_of(part, needs, times_ns, end_ns)
    return last


def _last_of(grid: Ints, needs: Mask, times_ns: Ints, end_ns: Ints) -> Ints:
    """``[collective, rank]``: the row that each rank's row waited for last."""
    arrived = times_ns[grid]
    # [collective, rank, other rank]
    held_up = needs & (arrived[:, np.newaxis, :] <= end_ns[grid][:, :, np.newaxis])
    held_up |= np.eye(grid.shape[1], dtype=bool)
    others = np.where(held_up, arrived[:, np.newaxis, :], -1).argmax(axis=2)
    chosen: Ints = np.take_along_axis(grid, others, axis=1)
    return chosen


@cache
def needed_ranks(op: int, root: int, size: int, is_gloo: bool) -> Mask:
    """Whether a rank cannot be done before another one has arrived.

    Args:
        op: code of broadcast, reduce, gather or scatter.
        root: rank in the group.
        size: ranks in the group.
        is_gloo: whether gloo does it.

    Returns:
        ``[rank, other]``, in the group; a rank needs itself.
    """
    rank = np.arange(size)
    needs = np.ones((size, size), dtype=bool)
    if op in (_GATHER, _SCATTER):
        needs = (rank == root)[:, np.newaxis] | (rank == root) | np.eye(size, dtype=bool)
    elif op == _BROADCAST and is_gloo:
        parents = _parents(size)
        needs = np.eye(size, dtype=bool)
        for place in range(1, size):
            at = place
            needs[parents[place], place] = True  # waits until its child is there
            while at:
                at = parents[at]
                needs[place, at] = True
        places = (rank - root) % size
        needs = needs[places][:, places]
    return needs


def _parents(size: int) -> list[int]:
    """Per place in the binomial tree the one that sends to it: without its highest bit."""
    return [place ^ (1 << (place.bit_length() - 1)) if place else 0 for place in range(size)]
