"""A rank is named if the others wait for it, and not if it is chance."""

from __future__ import annotations

import time

import numpy as np
import pytest

from commprof.analysis.late.stragglers import LateRank, find_late_rank
from tests.support.builders.traces import MS

STEP = 100.0 * MS


def waits(steps: int, ranks: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.zeros((steps, ranks))


def test_a_rank_that_is_always_late_is_named_with_what_it_costs() -> None:
    # Three others wait 10 ms each: 30 ms a step.
    waited = waits(12, 4)
    waited[:, 2] = 30 * MS
    late = find_late_rank(waited, STEP)
    assert late is not None
    assert (late.rank, late.wait_ns, late.share) == (2, 10.0 * MS, 1.0)
    # Twelve steps of 30 ms in all; each of the twelve costs far more than 2 % of 100 ms.
    assert (late.late_steps, late.measured_steps) == (12, 12)
    assert late.cost_s == pytest.approx(0.36)
    # By lot all twelve fall on one of four ranks in 4 * 4**-12; of 2,000 draws none does.
    assert late.p_value == 1 / 2001


def test_every_third_step_is_enough() -> None:
    random = np.random.default_rng(1)
    waited = random.uniform(0, 0.5 * MS, (60, 4))
    waited[::3, 3] += 60 * MS
    late = find_late_rank(waited, STEP)
    assert late is not None
    assert late.rank == 3
    # 20 of 60 steps, three waiting ranks: 60 / 3 / 3 = 6.7 ms, and a little noise.
    assert late.wait_ns == pytest.approx(6.75 * MS, rel=0.02)
    assert (late.late_steps, late.measured_steps) == (20, 60)


def test_two_ranks_late_by_turns_are_not_named() -> None:
    waited = waits(60, 4)
    waited[::2, 1] = 30 * MS
    waited[1::2, 2] = 30 * MS
    assert find_late_rank(waited, STEP) is None


def test_three_late_steps_of_two_ranks_may_be_chance() -> None:
    # The same rank three times out of three: by lot that happens once in four.
    waited = waits(10, 2)
    waited[:3, 1] = 50 * MS
    assert find_late_rank(waited, STEP) is None


def test_two_ranks_need_more_steps_than_eight() -> None:
    # By lot 2 * 2**-n: 3.1 % for six steps, 0.4 % for nine.
    waited = waits(9, 2)
    waited[:, 0] = 50 * MS
    assert find_late_rank(waited[:6], STEP) is None
    late = find_late_rank(waited, STEP)
    assert late is not None
    assert late.p_value == pytest.approx(2 / 512, abs=0.004)


@pytest.mark.parametrize(("wait_ms", "named"), [(1.9, False), (2.1, True)])
def test_lateness_below_two_percent_of_the_step_is_not_named(wait_ms: float, named: bool) -> None:
    waited = waits(30, 3)
    waited[:, 1] = 2 * wait_ms * MS  # two others wait
    assert (find_late_rank(waited, STEP) is not None) is named


@pytest.mark.parametrize(("share", "named"), [(0.55, False), (0.65, True)])
def test_a_rank_that_causes_too_little_of_the_waiting_is_not_named(
    share: float, named: bool
) -> None:
    waited = waits(40, 3)
    waited[:, 1] = share * 60 * MS
    waited[:, 2] = (1 - share) * 60 * MS
    assert (find_late_rank(waited, STEP) is not None) is named


def test_noise_is_not_named() -> None:
    named = [
        find_late_rank(np.random.default_rng(seed).exponential(20 * MS, (12, 4)), STEP)
        for seed in range(100)
    ]
    assert sum(late is not None for late in named) <= 2


def test_one_late_rank_per_step_at_random_is_not_named() -> None:
    named = 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        waited = waits(12, 4)
        waited[np.arange(12), random.integers(0, 4, 12)] = 30 * MS
        named += find_late_rank(waited, STEP) is not None
    assert named <= 2


@pytest.mark.parametrize(
    "waited",
    [waits(10, 1) + MS, waits(0, 4), waits(10, 4)],
    ids=["one rank", "no steps", "no waiting"],
)
def test_nobody_to_name(waited: np.ndarray) -> None:  # type: ignore[type-arg]
    assert find_late_rank(waited, STEP) is None


def test_few_late_steps_of_a_long_run_may_be_chance() -> None:
    # More steps than blocks. Four late steps on one of two ranks: by lot in 2 * 2**-4 = 1/8.
    waited = waits(1_300, 2)
    waited[::400, 1] = 1_000 * MS
    assert find_late_rank(waited, STEP) is None
    waited[::50, 1] = 1_000 * MS
    late = find_late_rank(waited, STEP)
    assert late is not None
    assert (late.rank, late.late_steps) == (1, 26)


def test_a_long_run_is_tested_in_time() -> None:
    random = np.random.default_rng(3)
    waited = random.uniform(0, MS, (20_000, 8))
    waited[:, 5] += 50 * MS
    begin = time.process_time()  # others use the machine too
    late = find_late_rank(waited, STEP)
    assert time.process_time() - begin < 1.5
    assert late is not None
    assert isinstance(late, LateRank)
    assert late.rank == 5


@pytest.mark.parametrize(
    ("clock_error_ms", "named"), [(0.0, True), (4.9, True), (5.0, False), (float("nan"), False)]
)
def test_a_wait_that_clock_errors_may_feign_names_nobody(
    clock_error_ms: float, named: bool
) -> None:
    # The three others wait 10 ms each: two clocks that are 5 ms off would look the same.
    waited = waits(12, 4)
    waited[:, 2] = 30 * MS
    assert (find_late_rank(waited, STEP, clock_error_ms * MS) is not None) == named


def test_a_rank_that_another_process_held_up_for_a_while_is_not_named() -> None:
    # As seen on a busy machine: ten steps in a row of 57, and hardly anything else.
    waited = np.random.default_rng(5).exponential(0.3 * MS, (57, 2))
    waited[21:31, 0] = 35 * MS
    assert find_late_rank(waited, STEP) is None
    # As often, but now and then: by lot on the same of two ranks in 2 * 2**-11.
    spread = np.random.default_rng(5).exponential(0.3 * MS, (57, 2))
    spread[3:57:5, 0] = 35 * MS
    late = find_late_rank(spread, STEP)
    assert late is not None
    assert late.rank == 0


def test_a_rank_that_is_late_by_the_same_throughout_is_named() -> None:
    """Equal values differ from their mean by a rounding, and are not alike for that."""
    for late_ns in np.linspace(19e6, 21e6, 40):
        waited_for = np.zeros((23, 2))
        waited_for[:, 1] = late_ns + np.arange(23)
        late = find_late_rank(waited_for, 50.3e6 + late_ns / 7, 0.0)
        assert late is not None
        assert late.rank == 1


def test_few_steps_that_are_alike_may_be_chance() -> None:
    """r is 0.25 about the mean of 20 steps and 0.35 put right, so 3 steps count as one, not 2.

    Seven blocks of two ranks then agree by lot with a chance of 2 / 2**7, which is more than 0.01.
    """
    waited = np.zeros((20, 2))
    waited[:, 1] = 30 * MS
    waited[[0, 5, 6, 12, 13], 1] = 0
    assert find_late_rank(waited, STEP) is None
