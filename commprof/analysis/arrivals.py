"""Matches the ranks' collectives and finds who came last to each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commprof.analysis.matching import match
from commprof.trace.columns import Collectives, Ints
from commprof.trace.reader import Trace


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
    """The last arrival at each collective and message, see :func:`matching.match`.

    Times must be on a common clock, see :func:`clocks_are_shared`.
    """
    matching = match(traces, tables)
    issue_ns = np.concatenate([table.issue_ns for table in tables])
    last_ns, late = (matching.split(part) for part in matching.latest(issue_ns))
    number = matching.split(np.where(matching.complete[matching.member], matching.member, -1))
    return [Arrivals(*parts) for parts in zip(last_ns, late, number, strict=True)]
