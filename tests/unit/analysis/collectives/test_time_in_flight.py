"""For how long each operation was under way."""

from __future__ import annotations

import numpy as np
import pytest

from commprof.analysis.collectives.time_in_flight import times_in_flight
from commprof.trace import columns
from tests.support.builders.traces import MS, Rank


def rank_of(number: int) -> Rank:
    """Two steps of 100 ms: gathers 10 to 30 and 20 to 50, rank 1 to 60; a reduction 40 to 45."""
    rank = Rank(number, 2)
    for step in range(2):
        at = 100 * MS * step
        rank.step(at, at + 100 * MS)
        last = at + (50 + 10 * number) * MS
        rank.collective(3 * step, at + 10 * MS, at + 30 * MS, op="all_gather_into_tensor")
        rank.collective(3 * step + 1, at + 20 * MS, last, op="all_gather_into_tensor")
        rank.collective(3 * step + 2, at + 40 * MS, at + 45 * MS)
    rank.collective(9, 190 * MS, 0, op="broadcast")  # no completion is known
    return rank


def test_calls_at_the_same_time_count_once() -> None:
    traces = [rank_of(number).trace() for number in range(2)]
    tables = [columns.collectives(trace) for trace in traces]
    found = {f.op: f.in_flight_ms for f in times_in_flight(traces, tables, np.array([0, 1]))}

    assert found == {"all_reduce": pytest.approx(5), "all_gather_into_tensor": pytest.approx(45)}
    assert times_in_flight(traces, tables, np.array([], dtype=np.int64)) == ()
    (one,) = (f for f in times_in_flight(traces, tables, np.array([1])) if f.op == "all_reduce")
    assert one.in_flight_ms == pytest.approx(5)
