"""A rank whose own work takes longer is told from ranks that the host holds up."""

from __future__ import annotations

import numpy as np
import pytest

from commprof.analysis.late.slowness import find_slow_rank
from commprof.analysis.late.stragglers import LateRank, find_late_rank, late_by_own_work
from commprof.analysis.step.pauses import ORIGINS
from commprof.trace.schema import PHASES, Phase
from tests.support.builders.traces import MS

STEP = 80.0 * MS


def work(ranks: int, steps: int) -> np.ndarray:  # type: ignore[type-arg]
    """8 ms in each phase of each rank."""
    return np.full((ranks, len(PHASES), steps), 8.0 * MS)


def held_up(ranks: int, steps: int, seed: int) -> np.ndarray:  # type: ignore[type-arg]
    """The same on a host with too few cores: in 4 of 10 phases 20 ms more, on the average."""
    random = np.random.default_rng(seed)
    size = (ranks, len(PHASES), steps)
    return work(ranks, steps) + random.exponential(20 * MS, size) * (random.random(size) < 0.4)


def test_a_rank_that_is_always_a_little_slower_is_found() -> None:
    slower = work(4, 12)
    slower[2, Phase.FORWARD] += 6 * MS
    slow = find_slow_rank(slower, STEP)
    assert slow is not None
    assert (slow.rank, slow.phase, slow.excess_ns) == (2, "forward", 6.0 * MS)
    # Twelve heads in twelve tosses, for 4 ranks and 5 phases.
    assert slow.p_value == pytest.approx(20 / 2**12)


def test_it_is_found_among_ranks_that_the_host_holds_up_and_nobody_else_is() -> None:
    for seed in range(100):
        noisy = held_up(8, 23, seed)
        assert find_slow_rank(noisy, STEP) is None
        noisy[5, Phase.OPTIMIZER] += 15 * MS
        slow = find_slow_rank(noisy, STEP)
        if slow is not None:  # such noise hides some
            assert (slow.rank, slow.phase) == (5, "optimizer")
    quiet = work(8, 23)
    quiet[5, Phase.OPTIMIZER] += 6 * MS
    assert find_slow_rank(quiet, STEP) is not None


def test_pauses_are_an_origin_of_their_own() -> None:
    steady = np.full((4, len(ORIGINS), 12), 8.0 * MS)
    steady[1, -1] += 6 * MS
    slow = find_slow_rank(steady, STEP)
    assert slow is not None
    assert (slow.rank, slow.phase) == (1, "host pause")


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_one_step_in_three_is_no_habit(ranks: int) -> None:
    sometimes = work(ranks, 30)
    sometimes[1, Phase.DATA, ::3] += 50 * MS
    assert find_slow_rank(sometimes, STEP) is None


def test_work_that_another_phase_makes_up_for_is_not_slow() -> None:
    shifted = work(4, 20)
    shifted[1, Phase.FORWARD] += 5 * MS
    shifted[1, Phase.BACKWARD] -= 5 * MS
    assert find_slow_rank(shifted, STEP) is None


def test_less_than_two_percent_of_the_step_and_few_steps_name_nobody() -> None:
    little = work(4, 20)
    little[0, Phase.DATA] += 1.5 * MS
    assert find_slow_rank(little, STEP) is None
    few = work(4, 8)  # 20 / 2**8 is more than 0.01
    few[0, Phase.DATA] += 30 * MS
    assert find_slow_rank(few, STEP) is None
    assert find_slow_rank(work(1, 20), STEP) is None
    assert find_slow_rank(work(4, 0), STEP) is None


def test_of_two_slow_ranks_neither_is_the_one() -> None:
    two = work(6, 20)
    two[1, Phase.DATA] += 10 * MS
    two[4, Phase.BACKWARD] += 10 * MS
    assert find_slow_rank(two, STEP) is None
    two[4, Phase.BACKWARD] += 11 * MS  # 21 ms are more than twice 10
    slow = find_slow_rank(two, STEP)
    assert slow is not None
    assert slow.rank == 4


def late(phase: str | None, share: float, rank: int = 2) -> LateRank:
    return LateRank(rank, 5 * MS, 0.9, 0.001, 20, 20, 0.3, phase, share)


def test_whom_the_waiting_shows_and_a_phase_explains_stays() -> None:
    found = late("data", 0.9)
    assert late_by_own_work(found, None, np.ones((20, 4)), STEP) is found
    unknown = late(None, float("nan"))
    assert late_by_own_work(unknown, None, np.ones((20, 4)), STEP) is unknown


def test_whom_the_host_held_up_is_not_named_but_for_its_own_work() -> None:
    slower = work(4, 20)
    slower[2, Phase.FORWARD] += 6 * MS
    slow = find_slow_rank(slower, STEP)
    assert late_by_own_work(late(None, 0.3), None, np.ones((20, 4)), STEP) is None
    named = late_by_own_work(late(None, 0.3), slow, np.ones((20, 4)), STEP)
    assert named is not None
    assert (named.rank, named.phase, named.slower_ms) == (2, "forward", 6.0)


def test_a_slow_rank_is_named_with_the_waiting_that_it_caused() -> None:
    slower = work(4, 20)
    slower[2, Phase.FORWARD] += 6 * MS
    slow = find_slow_rank(slower, STEP)
    waited = np.full((20, 4), 6.0 * MS)  # all ranks are late by turns, because of the host
    assert find_late_rank(waited, STEP) is None
    named = late_by_own_work(None, slow, waited, STEP)
    assert named is not None
    assert slow is not None
    assert (named.rank, named.phase, named.p_value) == (2, "forward", slow.p_value)
    assert (named.wait_ns, named.share) == (2.0 * MS, 0.25)
    waited[:, 2] = 0  # nobody ever waited for it
    assert late_by_own_work(None, slow, waited, STEP) is None


def test_work_that_is_slow_for_a_while_is_not_a_slow_rank() -> None:
    # Three of four steps, but in one stretch: alike steps count once.
    slower = work(2, 48)
    slower[1, Phase.FORWARD, :36] += 6 * MS
    assert find_slow_rank(slower, STEP) is None
    shuffled = work(2, 48)
    shuffled[1, Phase.FORWARD, np.arange(48) % 4 != 0] += 6 * MS
    assert find_slow_rank(shuffled, STEP) is not None


def test_few_steps_that_are_alike_name_nobody() -> None:
    """Of these 20 steps, all above the others, r is 0.25 about their mean and 0.35 put right.

    They count as 9 and not as 12, and 20 / 2**9 is more than 0.01.
    """
    alike = work(4, 20)
    alike[2, Phase.FORWARD] += 6 * MS
    alike[2, Phase.FORWARD, [0, 5, 6, 12, 13]] -= 5.5 * MS
    assert find_slow_rank(alike, STEP) is None
