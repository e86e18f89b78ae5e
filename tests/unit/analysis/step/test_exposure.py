from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest

from commprof.analysis.step.exposure import (
    HOST_PAUSE,
    ORIGINS,
    Exposures,
    exposures,
    exposures_of,
    pauses,
    training_thread,
)
from commprof.trace import columns
from commprof.trace.reader import Trace
from commprof.trace.schema import PHASES, Kind, Phase
from commprof.trace.stretches import Stretches, outside, stretches, within
from tests.support.builders.traces import MS, THREAD, Rank


def exposed(rank: Rank) -> Exposures:
    trace = rank.trace()
    return exposures(
        columns.collectives(trace), columns.waits(trace), columns.finalizations(trace), THREAD
    )


def rows(found: Exposures) -> list[tuple[int, int, int, float]]:
    values = (found.collective, found.begin_ns, found.end_ns, found.waited_ns)
    return list(zip(*(column.tolist() for column in values), strict=True))


def test_a_wait_is_exposed_from_call_to_return() -> None:
    rank = Rank()
    rank.collective(0, 10, 50)
    second = rank.collective(1, 20, 90)
    rank.wait(second, 30, 92)
    assert rows(exposed(rank)) == [(1, 30, 92, 62.0)]
    assert exposed(rank).graph_task.tolist() == [-1]


def test_waits_of_other_threads_are_not_exposed_time() -> None:
    rank = Rank()
    rank.wait(rank.collective(0, 10, 50), 30, 50, thread=THREAD + 1)
    assert len(exposed(rank)) == 0


def test_a_wait_for_an_unrecorded_collective_is_exposed_without_a_collective() -> None:
    rank = Rank()
    rank.collective(0, 10, 50)
    rank.wait(77, 30, 50)
    assert rows(exposed(rank)) == [(-1, 30, 50, 20.0)]


def test_a_wait_in_a_trace_without_collectives_is_exposed() -> None:
    rank = Rank()
    rank.wait(77, 30, 50)
    assert rows(exposed(rank)) == [(-1, 30, 50, 20.0)]


def test_waiting_of_a_finalisation_is_attributed_to_its_buckets_in_order() -> None:
    rank = Rank()
    rank.collective(0, 50, 130, graph_task=4)
    rank.collective(1, 60, 200, graph_task=4)
    rank.finalize(100, 200, cpu=0, graph_task=4)
    assert rows(exposed(rank)) == [(0, 100, 130, 30.0), (1, 130, 200, 70.0)]
    assert exposed(rank).graph_task.tolist() == [4, 4]


def test_a_wait_up_to_the_end_of_the_finalisation_counts_once() -> None:
    rank = Rank()
    bucket = rank.collective(0, 50, 190, graph_task=4)
    rank.wait(bucket, 150, 200)
    rank.finalize(100, 200, cpu=0, graph_task=4)
    assert exposed(rank).waited_ns.sum() == 100


def test_the_copy_speed_follows_from_the_blocked_time_of_a_finalisation() -> None:
    # The thread is blocked for 60 of 100 ns: 40 ns for the first bucket and 20 ns for the second.
    # So the thread copies the first bucket from 40 to 60 ns, at 2 ns per byte.
    rank = Rank()
    rank.collective(0, 1, 40, bytes=10, graph_task=0)
    rank.collective(1, 2, 80, bytes=10, graph_task=0)
    rank.finalize(0, 100, cpu=40)
    assert rows(exposed(rank)) == [(0, 0, 40, 40.0), (1, 60, 80, 20.0)]


def test_a_bucket_that_ended_during_a_copy_is_not_waited_for() -> None:
    # Copying the first bucket at 1 ns per byte takes until 50 ns, when the second bucket is done.
    rank = Rank()
    rank.collective(0, 1, 30, bytes=20, graph_task=0)
    rank.collective(1, 2, 45, bytes=10, graph_task=0)
    rank.collective(2, 3, 90, bytes=10, graph_task=0)
    rank.finalize(0, 100, cpu=40)
    assert rows(exposed(rank)) == [(0, 0, 30, 30.0), (2, 60, 90, 30.0)]


def test_exposed_time_of_a_bucket_is_at_most_the_blocked_time() -> None:
    rank = Rank()
    rank.collective(0, 1, 100, bytes=10, graph_task=0)
    rank.finalize(0, 100, cpu=70)
    assert rows(exposed(rank)) == [(0, 0, 100, pytest.approx(30.0))]


def test_the_assumed_copying_takes_no_longer_than_the_finalisation() -> None:
    # 10 bytes are copied within 100 ns only at up to 10 ns per byte. The thread would then wait for
    # 90 ns, nine times the measured 10 ns.
    rank = Rank()
    rank.collective(0, 1, 40, bytes=1, graph_task=0)
    rank.collective(1, 2, 100, bytes=9, graph_task=0)
    rank.finalize(0, 100, cpu=90)
    assert rows(exposed(rank)) == [
        (0, 0, 40, pytest.approx(40 / 9)),
        (1, 50, 100, pytest.approx(50 / 9)),
    ]


def test_blocked_time_after_all_buckets_are_done_belongs_to_no_bucket() -> None:
    rank = Rank()
    rank.collective(0, 1, 30, bytes=10, graph_task=0)
    rank.finalize(0, 100, cpu=0, run_delay=60)
    assert rows(exposed(rank)) == [(0, 0, 30, 30.0), (-1, 30, 100, 70.0)]


@pytest.mark.parametrize("end", [0, 40])
def test_waiting_of_a_finalisation_without_open_buckets_belongs_to_no_bucket(end: int) -> None:
    # An end of 0 is unknown; an end of 40 lies before the finalisation.
    rank = Rank()
    rank.collective(0, 1, end, bytes=10, graph_task=0)
    rank.finalize(50, 100, cpu=20)
    assert rows(exposed(rank)) == [(-1, 50, 100, 30.0)]


def test_exposed_time_of_a_bucket_ends_with_the_finalisation() -> None:
    rank = Rank()
    rank.collective(0, 1, 140, graph_task=0)
    rank.finalize(0, 100, cpu=0)
    assert rows(exposed(rank)) == [(0, 0, 100, 100.0)]


def test_a_wait_within_a_finalisation_counts_once() -> None:
    rank = Rank()
    op_id = rank.collective(0, 1, 40)
    rank.collective(1, 2, 90, graph_task=0)
    rank.wait(op_id, 10, 40)
    rank.finalize(0, 100, cpu=20)
    assert exposed(rank).waited_ns.sum() == pytest.approx(80.0)


def test_waits_before_and_after_a_finalisation_count_separately() -> None:
    rank = Rank()
    op_id = rank.collective(0, 1, 40)
    rank.wait(op_id, 10, 40)
    rank.finalize(50, 100, cpu=20)
    rank.wait(op_id, 110, 130)
    assert exposed(rank).waited_ns.tolist() == [30.0, 30.0, 20.0]


def test_each_backward_pass_has_its_own_buckets() -> None:
    rank = Rank()
    for task, at in ((7, 0), (9, 1000)):
        rank.collective(task, at + 1, at + 60, graph_task=task)
        rank.finalize(at + 10, at + 60, cpu=0, graph_task=task)
    assert rows(exposed(rank)) == [(0, 10, 60, 50.0), (1, 1010, 1060, 50.0)]
    assert exposed(rank).graph_task.tolist() == [7, 9]


def test_a_trace_without_records_has_no_exposed_time() -> None:
    assert len(exposed(Rank())) == 0


def test_finding_exposed_time_takes_time_proportional_to_the_steps() -> None:
    def seconds(steps: int) -> float:
        trace = long_run(steps)
        table = columns.collectives(trace)
        # Other processes use the machine too, so CPU time is measured.
        begin = time.process_time()
        found = exposures(table, columns.waits(trace), columns.finalizations(trace), THREAD)
        assert found.waited_ns.tolist() == [30.0, 20.0, 5.0, 5.0] * steps
        return time.process_time() - begin

    # The bound is the geometric mean of 50 (for linear time) and 2,500 (for quadratic time).
    assert seconds(20_000) < 50**1.5 * seconds(400)


def long_run(steps: int) -> Trace:
    block = Rank()
    block.wait(block.collective(0, 1, 40), 10, 40)
    for seq in range(3):
        block.collective(seq, 50 + seq, 80 + 5 * seq, graph_task=0)
    block.finalize(60, 100, cpu=10)
    records = np.tile(block.records(), steps)
    turn = np.repeat(np.arange(steps, dtype=np.uint64), len(block.records()))
    kind = records["kind"]
    records["timestamp_ns"] += turn * np.uint64(MS)
    finalizes = np.isin(kind, (Kind.FINALIZE_BEGIN, Kind.FINALIZE_END))
    records["op_id"] += np.where(finalizes, turn, turn * np.uint64(10))
    records["value"] += np.where(kind == Kind.WAIT, turn * np.uint64(MS), np.uint64(0))
    in_backward = (kind == Kind.ISSUE) & (records["value"] > 0)
    records["value"] += np.where(in_backward, turn, np.uint64(0))
    return dataclasses.replace(block.trace(), records=records)


def test_a_finalisation_also_waits_for_collectives_issued_in_hook_callbacks() -> None:
    # In torch's PowerSGD hook, the callback of each all-reduce issues the next all-reduce.
    rank = Rank(groups={1: ("0", 1), 2: ("other", 1)})
    rank.collective(0, 50, 130, bytes=8, graph_task=7)
    rank.collective(1, 131, 160, bytes=4, thread=THREAD + 1)
    rank.collective(2, 161, 200, bytes=4, thread=THREAD + 1)
    # The finalisation waits for none of the next four calls.
    rank.collective(3, 40, 180, thread=THREAD + 1)
    rank.collective(4, 140, 180, thread=THREAD + 1, group=2)
    rank.collective(5, 140, 180)
    rank.collective(6, 201, 210, thread=THREAD + 1)
    rank.finalize(100, 200, cpu=0, graph_task=7)
    found = exposed(rank)
    of = dict(zip(found.collective.tolist(), found.waited_ns.tolist(), strict=True))
    table = columns.collectives(rank.trace())
    by_seq = {int(table.seq[row]): waited for row, waited in of.items()}
    assert by_seq == {0: 30.0, 1: 30.0, 2: 40.0}


def of(*pairs: tuple[int, int]) -> Stretches:
    begin, end = zip(*pairs, strict=True) if pairs else ((), ())
    return stretches(np.array(begin, dtype=np.int64), np.array(end, dtype=np.int64))


def pairs(some: Stretches) -> list[tuple[int, int]]:
    return list(zip(some.begin_ns.tolist(), some.end_ns.tolist(), strict=True))


def moments(some: Stretches) -> set[int]:
    return {at for begin, end in pairs(some) for at in range(begin, end)}


def test_overlapping_stretches_of_time_count_once() -> None:
    assert pairs(of()) == []
    assert pairs(of((5, 9), (1, 3), (2, 6), (9, 9), (8, 4))) == [(1, 3), (3, 6), (6, 9)]


@pytest.mark.parametrize("seed", range(30))
def test_within_and_outside_equal_set_intersection_and_difference_of_moments(seed: int) -> None:
    rng = np.random.default_rng(seed)
    some, others = (
        stretches(begin, begin + rng.integers(0, 15, len(begin)))
        for begin in (rng.integers(0, 200, count) for count in rng.integers(0, 12, 2))
    )
    assert moments(within(some, others)) == moments(some) & moments(others)
    assert moments(outside(some, others)) == moments(some) - moments(others)
    assert (np.diff(within(some, others).begin_ns) > 0).all()


def test_a_pause_during_exposed_time_is_not_a_pause() -> None:
    rank = Rank()
    rank.step(0, 1000)
    rank.wait(rank.collective(0, 190, 300), 200, 300)
    rank.pause(150, 250)
    rank.pause(280, 400)
    rank.pause(500, 500)
    trace = rank.trace()
    exposed = exposures_of(trace)
    assert pairs(pauses(trace, exposed)) == [(150, 200), (300, 400)]


def test_origins_are_all_phases_and_host_pauses() -> None:
    assert (*PHASES, HOST_PAUSE) == ORIGINS


def test_without_steps_the_training_thread_is_the_one_with_the_phases() -> None:
    rank = Rank(0, 2)
    rank.phase(Phase.FORWARD, 0, 5)
    rank.collective(1, 6, 10, 400)
    for number in range(2, 5):
        rank.collective(number, 10 * number, 10 * number + 5, 400, thread=THREAD + 1)
    assert training_thread(rank.trace()) == THREAD
