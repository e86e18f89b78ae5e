"""Checks the moments that synchronise ranks: ends of collectives that all of them saw."""

from __future__ import annotations

import numpy as np
import pytest

from commprof.analysis.align.matching import match
from commprof.analysis.late.arrivals import SharedCalls, last_before, match_arrivals
from commprof.analysis.step.exposure import exposures_of
from commprof.trace import columns
from tests.support.builders.traces import Rank


def shared(*ranks: Rank) -> SharedCalls:
    traces = [rank.trace() for rank in ranks]
    tables = [columns.collectives(trace) for trace in traces]
    arrivals = match_arrivals(match(traces, tables), traces, tables)
    return SharedCalls(tables, arrivals, [exposures_of(trace) for trace in traces])


def two_ranks(ends: list[tuple[int, int]]) -> list[Rank]:
    """Ranks that wait for collectives with these ends on either rank; 0 if the end is unknown."""
    ranks = [Rank(rank, 2) for rank in range(2)]
    for seq, of_ranks in enumerate(ends):
        for rank, end in zip(ranks, of_ranks, strict=True):
            op_id = rank.collective(seq, 100 * seq + 10, end)
            if end:
                rank.wait(op_id, 100 * seq + 10, end)
    return ranks


@pytest.mark.parametrize(
    ("ends", "moments"),
    [
        ([(40, 45), (145, 140)], [45, 145]),
        ([(40, 0), (145, 140)], [145]),
        ([(0, 45), (145, 140)], [145]),
        ([(0, 0), (145, 140)], [145]),
        ([(40, 0), (0, 140)], []),
    ],
)
def test_ranks_are_synchronised_when_the_last_of_them_saw_a_collective_end(
    ends: list[tuple[int, int]], moments: list[int]
) -> None:
    assert shared(*two_ranks(ends)).synchronised_ns(0, 1).tolist() == moments


def test_a_collective_that_no_thread_waited_for_does_not_synchronise_ranks() -> None:
    ranks = two_ranks([(40, 45)])
    for rank in ranks:
        rank.collective(1, 60, 80)
    assert shared(*ranks).synchronised_ns(0, 1).tolist() == [45]


def test_last_before_includes_a_moment_at_the_same_time() -> None:
    moments = shared(*two_ranks([(40, 45), (145, 140)])).synchronised_ns(0, 1)
    times = np.array([44, 45, 144, 145, 200])
    assert last_before(moments, times).tolist() == [0, 45, 45, 145, 145]
