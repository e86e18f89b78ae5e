from __future__ import annotations

import heapq
import random
from dataclasses import replace

import numpy as np
import pytest

from commprof.analysis.collectives.calls import (
    DEFAULT_GLOO_THREADS,
    assumes_threads,
    fifo_starts,
    start_times,
)
from commprof.trace import columns
from tests.support.builders.traces import Rank


def starts(rank: Rank) -> list[int]:
    trace = rank.trace()
    return start_times(trace, columns.collectives(trace)).tolist()


def test_starts_of_a_known_schedule_on_two_threads() -> None:
    # Thread A runs calls 0, 3, 4 and 5; thread B runs calls 1 and 2.
    rank = Rank()
    for seq, (issue, end) in enumerate(
        [(10, 50), (20, 30), (25, 90), (28, 60), (29, 70), (80, 85)]
    ):
        rank.collective(seq, issue, end)
    assert starts(rank) == [10, 20, 30, 50, 60, 80]


def test_each_group_has_its_own_threads() -> None:
    rank = Rank(groups={1: ("0", 1), 2: ("other", 1)})
    for group in (1, 2):
        for seq in range(3):
            rank.collective(seq, 10 * group + seq, 100 + seq, group=group)
    assert starts(rank) == [10, 11, 100, 20, 21, 100]


@pytest.mark.parametrize("op", ["send", "recv", "recv_any_source", "monitored_barrier"])
def test_messages_start_at_once_and_occupy_no_thread(op: str) -> None:
    rank = Rank()
    rank.collective(0, 10, 100)
    rank.collective(0, 20, 100, op=op)
    rank.collective(1, 30, 100)
    rank.collective(1, 40, 100, op=op)
    rank.collective(2, 50, 110)
    assert starts(rank) == [10, 20, 30, 40, 100]


def test_the_number_of_gloo_threads_is_read_from_the_trace_and_is_two_otherwise() -> None:
    rank = Rank(world_size=2)
    for seq in range(4):
        rank.collective(seq, 10 + seq, 100 + seq)
    assert assumes_threads(rank.trace())
    assert starts(rank) == [10, 11, 100, 101]
    for threads, expected in ((1, [10, 100, 101, 102]), (3, [10, 11, 12, 100])):
        rank.metadata["gloo_threads"] = {"0": threads}
        assert not assumes_threads(rank.trace())
        assert starts(rank) == expected
    for unusable in ("3", -1, 0, 2**40, True):
        rank.metadata["gloo_threads"] = {"0": unusable}
        assert starts(rank) == [10, 11, 100, 101]


def test_the_threads_of_a_group_with_two_backends_are_those_of_its_cpu_part() -> None:
    rank = Rank(world_size=2, groups={1: ("0:gloo", 2), 2: ("0", 2)})
    rank.metadata["gloo_threads"] = {"0": 1}
    for group in (1, 2):
        for seq in range(2):
            rank.collective(seq, 10 * group + seq, 100 + seq, group=group)
    trace = rank.trace()
    trace.groups[2] = replace(trace.groups[2], backend="nccl")
    assert not assumes_threads(trace)
    assert start_times(trace, columns.collectives(trace)).tolist() == [10, 100, 0, 0]


def test_starts_are_unknown_for_backends_other_than_gloo() -> None:
    rank = Rank()
    rank.backend = "nccl"
    rank.collective(0, 10, 100)
    assert starts(rank) == [0]


def test_a_start_that_depends_on_an_unknown_end_is_unknown() -> None:
    rank = Rank()
    for seq, (issue, end) in enumerate([(10, 20), (30, 0), (40, 90), (50, 95), (96, 99)]):
        rank.collective(seq, issue, end)
    assert starts(rank) == [10, 30, 40, 0, 96]


def test_a_lost_end_hides_only_the_next_start_of_a_single_thread() -> None:
    rank = Rank()
    rank.metadata["gloo_threads"] = {"0": 1}
    for seq, (issue, end) in enumerate([(10, 0), (20, 90), (30, 95), (99, 120)]):
        rank.collective(seq, issue, end)
    assert starts(rank) == [10, 0, 90, 99]


def test_the_return_of_a_wait_is_the_latest_possible_end_of_its_collective() -> None:
    rank = Rank()
    rank.wait(rank.collective(0, 10, 0), 40, 50)
    rank.collective(1, 20, 70)
    rank.collective(2, 30, 60)
    rank.collective(3, 58, 80)
    assert starts(rank) == [10, 20, 0, 60]


def test_a_derived_start_is_never_after_the_collective_s_end() -> None:
    rank = Rank()
    for seq, (issue, end) in enumerate([(10, 50), (11, 52), (12, 49)]):
        rank.collective(seq, issue, end)
    assert starts(rank) == [10, 11, 49]


def simulate(
    lots: random.Random, threads: int, count: int
) -> tuple[list[int], list[int], list[int]]:
    issue = sorted(lots.randrange(1, 20 * count) for _ in range(count))
    duration = [lots.choice([lots.randrange(1, 10), lots.randrange(1, 200)]) for _ in issue]
    start, end = [0] * count, [0] * count
    waiting: list[int] = []
    running: list[int] = []
    events = [(time, 1, k) for k, time in enumerate(issue)]
    heapq.heapify(events)
    while events:
        now, arrives, k = heapq.heappop(events)
        if arrives:
            waiting.append(k)
        else:
            running.remove(k)
        while waiting and len(running) < threads:
            first = waiting.pop(0)
            start[first], end[first] = now, now + duration[first]
            running.append(first)
            heapq.heappush(events, (end[first], 0, first))
    return issue, start, end


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_starts_derived_from_random_schedules_equal_the_simulated_ones(
    seed: int, threads: int
) -> None:
    issue, start, end = simulate(random.Random(seed), threads, count=60)
    found = fifo_starts(np.array(issue), np.array(end), threads)
    assert found.tolist() == start
    assert any(a < b for a, b in zip(issue, start, strict=True))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("threads", [1, DEFAULT_GLOO_THREADS])
def test_starts_derived_with_lost_ends_are_correct_or_unknown(seed: int, threads: int) -> None:
    lots = random.Random(seed)
    issue, start, end = simulate(lots, threads, count=60)
    lost = lots.sample(range(10, 60), 2)
    rank = Rank()
    rank.metadata["gloo_threads"] = {"0": threads}
    for seq, (issued, ended) in enumerate(zip(issue, end, strict=True)):
        rank.collective(seq, issued, 0 if seq in lost else ended)
    found = starts(rank)
    assert all(here in (0, true) for here, true in zip(found, start, strict=True))
    assert found[: min(lost) + 1] == start[: min(lost) + 1]
