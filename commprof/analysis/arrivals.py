"""Matches the ranks' collectives and finds who came last to each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commprof.trace.columns import Collectives, Ints
from commprof.trace.reader import Trace
from commprof.trace.schema import OPS

#: They have no sequence number in common with their peer.
_POINT_TO_POINT = tuple(OPS.index(name) for name in ("send", "recv", "recv_any_source"))


@dataclass(frozen=True)
class Arrivals:
    """For one rank, aligned with its ``Collectives``: when the last rank arrived."""

    #: Issue time of the last rank; 0 where not all ranks of the group were seen.
    last_arrival_ns: Ints
    #: Global rank that arrived last; -1 where not known.
    late_rank: Ints
    #: Number of the collective, the same on all ranks; -1 where not all ranks were seen.
    collective: Ints


def clocks_are_shared(traces: Sequence[Trace]) -> bool:
    """True if all ranks ran on one boot of one machine, so that CLOCK_MONOTONIC is common."""
    if len(traces) == 1:
        return True
    keys = {
        (trace.metadata["machine"]["boot_id"], trace.metadata["machine"]["time_namespace"])
        for trace in traces
    }
    return len(keys) == 1 and keys != {("", "")}


def match_arrivals(traces: Sequence[Trace], tables: Sequence[Collectives]) -> list[Arrivals]:
    """Joins collectives by (group name, sequence number) over the ranks given.

    A collective counts as matched when as many ranks as the group has issued the same
    operation under the same number, each of them once. Times must be on a common clock, see
    :func:`clocks_are_shared`.
    """
    names: dict[tuple[str, int], int] = {}
    keys, sizes, ranks = [], [], []
    for trace, table in zip(traces, tables, strict=True):
        group_key, group_size = _group_columns(trace, table, names)
        keys.append(np.stack([group_key, table.seq, table.op], axis=1))
        sizes.append(group_size)
        ranks.append(np.full(len(table), trace.rank, dtype=np.int64))
    issue_ns = np.concatenate([table.issue_ns for table in tables])
    _, member = np.unique(np.concatenate(keys), axis=0, return_inverse=True)
    member = member.reshape(-1)
    rank, size = np.concatenate(ranks), np.concatenate(sizes)
    # Ordered by collective, then time: the last row of each collective is the late rank.
    order = np.lexsort((issue_ns, member))
    last_row = order[np.flatnonzero(np.diff(member[order], append=-1) != 0)]
    issued = np.bincount(member)
    distinct = np.bincount(np.unique(np.stack([member, rank]), axis=1)[0], minlength=len(issued))
    complete = (issued == size[last_row]) & (distinct == issued)
    last_ns = np.where(complete, issue_ns[last_row], 0)[member]
    late = np.where(complete, rank[last_row], -1)[member]
    number = np.where(complete[member], member, -1)
    bounds = np.cumsum([len(table) for table in tables])[:-1]
    return [
        Arrivals(*parts)
        for parts in zip(
            *(np.split(values, bounds) for values in (last_ns, late, number)), strict=True
        )
    ]


def _group_columns(
    trace: Trace, table: Collectives, names: dict[tuple[str, int], int]
) -> tuple[Ints, Ints]:
    """Number common to all ranks and size of each row's group; size 0 where rows have no match.

    Each rank counts its groups by itself; the name is common. A name that is used again (the
    default group after ``destroy_process_group``) is told apart by its turn.
    """
    number = np.full(len(table), -1, dtype=np.int64)
    size = np.zeros(len(table), dtype=np.int64)
    turns: Counter[str] = Counter()
    for group in sorted(trace.groups.values(), key=lambda group: group.id):
        rows = table.group == group.id
        key = group.name, turns[group.name]
        turns[group.name] += 1
        number[rows] = names.setdefault(key, len(names))
        size[rows] = group.size
    size[np.isin(table.op, _POINT_TO_POINT)] = 0
    return number, size
