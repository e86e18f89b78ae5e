"""Finds adjacent ranks with equal process groups, whose tables can be processed together."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence

import numpy as np

from commprof.trace.columns import Collectives, Ints
from commprof.trace.lookup import joined_column, kept_once
from commprof.trace.ranks import joined
from commprof.trace.reader import Trace


def alike_ranks(traces: Sequence[Trace]) -> list[slice]:
    """Returns slices of adjacent ranks with the same groups and the same kind of recording.

    In a slice, a group has the same id, name, size and backend on all ranks.
    """
    bounds = [0]
    for _, row in itertools.groupby(traces, _described):
        bounds.append(bounds[-1] + len(list(row)))
    return list(itertools.starmap(slice, itertools.pairwise(bounds)))


def _described(trace: Trace) -> Hashable:
    groups = tuple([(g.id, g.name, g.size, g.backend) for g in trace.groups.values()])
    return groups, trace.is_foreign, trace.recorded is None


def sizes_of_groups(traces: Sequence[Trace], tables: Sequence[Collectives]) -> Ints:
    """Returns the number of ranks in the group of each collective; 0 for an unknown group."""
    return joined_column(
        _sizes_in_row(traces[rows.start], tables[rows]) for rows in alike_ranks(traces)
    )


def _sizes_in_row(trace: Trace, tables: Sequence[Collectives]) -> Ints:
    group = joined(tables, "group")
    size = np.zeros(len(group), dtype=np.int64)
    for described in trace.groups.values():
        size[group == described.id] = described.size
    return kept_once(size)
