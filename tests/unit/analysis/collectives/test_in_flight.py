from __future__ import annotations

import numpy as np
import pytest

from commprof.analysis.collectives.in_flight import UNSPLIT, times_in_flight
from commprof.analysis.step.measured import MeasuredWorld, measured_world
from commprof.analysis.timeline.drawn_timeline import Timeline, timeline
from commprof.trace import columns
from tests.support.builders.random_run import RandomRun
from tests.support.builders.run_directories import ranks_of
from tests.support.builders.traces import MS, Rank, world_run


def rank_of(number: int) -> Rank:
    rank = Rank(number, 2)
    for step in range(2):
        at = 100 * MS * step
        rank.step(at, at + 100 * MS)
        last = at + (50 + 10 * number) * MS
        rank.collective(3 * step, at + 10 * MS, at + 30 * MS, op="all_gather_into_tensor")
        rank.collective(3 * step + 1, at + 20 * MS, last, op="all_gather_into_tensor")
        rank.collective(3 * step + 2, at + 40 * MS, at + 45 * MS)
    rank.collective(9, 190 * MS, 0, op="broadcast")
    return rank


def test_overlapping_calls_of_an_operation_count_once_in_time_in_flight() -> None:
    traces = [rank_of(number).trace() for number in range(2)]
    tables = [columns.collectives(trace) for trace in traces]
    found = {f.op: f.in_flight_ms for f in times_in_flight(traces, tables, np.array([0, 1]))}

    assert found == {"all_reduce": pytest.approx(5), "all_gather_into_tensor": pytest.approx(45)}
    assert times_in_flight(traces, tables, np.array([], dtype=np.int64)) == ()
    (one,) = (f for f in times_in_flight(traces, tables, np.array([1])) if f.op == "all_reduce")
    assert one.in_flight_ms == pytest.approx(5)


def seen(ranks: list[Rank]) -> MeasuredWorld:
    found = measured_world(world_run(ranks))
    assert found is not None
    return found


def flight(drawn: Timeline, rank: int, row: int) -> tuple[int, ...]:
    """Returns the negotiate, queue, wait and transfer times in ms."""
    intervals = drawn.ranks[rank].in_flight
    names = ("negotiate_ns", "queue_ns", "wait_ns", "transfer_ns")
    return tuple(int(getattr(intervals, name)[row]) // MS for name in names)


def test_time_in_flight_until_the_last_rank_issues_is_negotiation() -> None:
    drawn = timeline(seen(ranks_of(2, 6, late_ms=15)))
    assert drawn.steps.tolist() == [1, 2, 3, 4, 5]
    assert [kind.op for kind in drawn.kinds] == ["all_reduce"]
    assert drawn.kinds[0].size_bytes == 4_000_000
    # Rank 1 issues bucket 1 at 75 ms, 15 ms after rank 0.
    assert [flight(drawn, 0, row) for row in (0, 1)] == [(0, 0, 0, 10), (15, 0, 0, 20)]
    assert [flight(drawn, 1, row) for row in (0, 1)] == [(0, 0, 0, 10), (0, 0, 0, 20)]


def test_time_after_the_own_queue_until_the_other_rank_s_queue_ends_is_waiting() -> None:
    # With two threads, the third collective of a step begins when the first one ends.
    ranks = [Rank(rank, 2) for rank in range(2)]
    for rank in ranks:
        for step in range(4):
            at = 200 * MS * step
            rank.step(at, at + 200 * MS)
            first_ends = at + (30 if rank.rank == 0 else 50) * MS
            rank.collective(3 * step, at + 1 * MS, first_ends)
            rank.collective(3 * step + 1, at + 2 * MS, at + 100 * MS)
            rank.collective(3 * step + 2, at + 10 * MS * (1 + rank.rank), at + 90 * MS)
    drawn = timeline(seen(ranks))
    # The third collective is issued at 10 and 20 ms, starts at 30 and 50 ms, and ends at 90 ms.
    assert flight(drawn, 0, 2) == (10, 10, 20, 40)
    assert flight(drawn, 1, 2) == (0, 30, 0, 40)


@pytest.mark.parametrize("seed", range(5))
def test_parts_of_time_in_flight_add_up_on_random_schedules(seed: int) -> None:
    world = seen(RandomRun(seed).ranks)
    drawn = timeline(world)
    for rank, table in zip(drawn.ranks, world.tables, strict=True):
        lengths = dict(
            zip(table.issue_ns.tolist(), (table.end_ns - table.issue_ns).tolist(), strict=True)
        )
        intervals = rank.in_flight
        assert len(intervals.step)
        assert (intervals.negotiate_ns >= 0).all()
        assert (intervals.queue_ns >= 0).all()
        assert (intervals.wait_ns >= 0).all()
        assert (intervals.transfer_ns >= 0).all()
        expected = [lengths[issue] for issue in intervals.issue_ns.tolist()]
        assert intervals.duration_ns.tolist() == expected


def test_time_in_flight_is_not_split_if_a_rank_did_not_issue_the_collective() -> None:
    ranks = [Rank(rank, 2) for rank in range(2)]
    for rank in ranks:
        for step in range(4):
            rank.step(100 * MS * step, 100 * MS * (step + 1))
            if rank.rank == 0:
                rank.collective(step, 100 * MS * step + 10 * MS, 100 * MS * step + 30 * MS)
    intervals = timeline(seen(ranks)).ranks[0].in_flight
    assert set(intervals.negotiate_ns.tolist()) == {UNSPLIT}
    assert set(intervals.duration_ns.tolist()) == {20 * MS}


def test_collectives_without_an_end_are_left_out_of_the_timeline() -> None:
    rank = Rank()
    for step in range(3):
        rank.step(100 * MS * step, 100 * MS * (step + 1))
        rank.collective(step, 100 * MS * step + MS, 0)
    assert len(timeline(seen([rank])).ranks[0].in_flight.step) == 0


def test_cutting_the_timeline_keeps_whole_steps_from_the_middle() -> None:
    drawn = timeline(seen(ranks_of(2, 21)))
    per_step = drawn.spans // len(drawn.steps)
    assert drawn.middle(drawn.spans) is drawn
    cut = drawn.middle(5 * per_step)
    assert cut.steps.tolist() == [8, 9, 10, 11, 12]
    assert cut.spans == 5 * per_step
    assert cut.left_out == 0
    assert cut.measured_steps == 20
    for rank in cut.ranks:
        assert rank.steps.step.tolist() == [0, 1, 2, 3, 4]
        assert set(rank.in_flight.step.tolist()) == {0, 1, 2, 3, 4}


def test_a_single_step_with_too_many_spans_is_cut() -> None:
    rank = Rank()
    for step in range(3):
        rank.step(10 * MS * step, 10 * MS * (step + 1))
        for i in range(1000):
            begin = 10 * MS * step + 1000 * i
            rank.collective(1000 * step + i, begin, begin + 500)
    drawn = timeline(seen([rank]))
    cut = drawn.middle(100)
    assert len(cut.steps) == 1
    assert cut.spans <= 100
    assert cut.left_out == 1001 - cut.spans
    assert np.array_equal(cut.ranks[0].in_flight.issue_ns, np.sort(cut.ranks[0].in_flight.issue_ns))
