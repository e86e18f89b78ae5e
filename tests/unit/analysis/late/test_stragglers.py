from __future__ import annotations

import time

import numpy as np
import pytest

from commprof.analysis.late.few_steps import enough_steps, late_rank_of_few_steps
from commprof.analysis.late.stragglers import (
    LateRank,
    beyond_the_others,
    find_late_rank,
    find_slow_rank,
    late_by_own_work,
    late_rank,
)
from commprof.analysis.step.exposure import CAUSES, NO_CORE, ORIGINS
from commprof.trace.schema import PHASES, Phase
from tests.support.builders.traces import MS

WORK_STEP = 80.0 * MS


def work(ranks: int, steps: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.full((ranks, len(PHASES), steps), 8.0 * MS)


def held_up(ranks: int, steps: int, seed: int) -> np.ndarray:  # type: ignore[type-arg]
    """Too few cores delay 40 % of the phases, by 20 ms on average."""
    random = np.random.default_rng(seed)
    size = (ranks, len(PHASES), steps)
    return work(ranks, steps) + random.exponential(20 * MS, size) * (random.random(size) < 0.4)


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("kind", ["distinct", "ties", "unknown"])
def test_each_rank_is_compared_with_the_median_of_the_others(ranks: int, kind: str) -> None:
    random = np.random.default_rng(ranks)
    values = random.random((ranks, 5, 40))
    if kind == "ties":
        values = np.round(4 * values)
    if kind == "unknown":
        values[random.random(values.shape) < 0.1] = np.nan
    expected = [
        values[rank] - np.median(np.delete(values, rank, axis=0), axis=0) for rank in range(ranks)
    ]
    np.testing.assert_array_equal(beyond_the_others(values), expected)


def test_excess_over_the_other_ranks_is_nan_for_a_single_rank() -> None:
    assert np.isnan(beyond_the_others(np.ones((1, 3)))).all()


def test_a_rank_that_is_slightly_slower_in_every_step_is_found() -> None:
    slower = work(4, 12)
    slower[2, Phase.FORWARD] += 6 * MS
    slow = find_slow_rank(slower, WORK_STEP)
    assert slow is not None
    assert (slow.rank, slow.phase, slow.excess_ns) == (2, "forward", 6.0 * MS)
    # The sign test of 12 steps is corrected for 4 ranks and 5 phases.
    assert slow.p_value == pytest.approx(20 / 2**12)


def test_with_ranks_delayed_by_the_host_no_rank_but_the_slow_one_is_named() -> None:
    for seed in range(100):
        noisy = held_up(8, 23, seed)
        assert find_slow_rank(noisy, WORK_STEP) is None
        noisy[5, Phase.OPTIMIZER] += 15 * MS
        slow = find_slow_rank(noisy, WORK_STEP)
        if slow is not None:
            assert (slow.rank, slow.phase) == (5, "optimizer")
    quiet = work(8, 23)
    quiet[5, Phase.OPTIMIZER] += 6 * MS
    assert find_slow_rank(quiet, WORK_STEP) is not None


def test_a_rank_slowed_by_pauses_is_named_with_host_pause() -> None:
    steady = np.full((4, len(ORIGINS), 12), 8.0 * MS)
    steady[1, -1] += 6 * MS
    slow = find_slow_rank(steady, WORK_STEP)
    assert slow is not None
    assert (slow.rank, slow.phase) == (1, "host pause")


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_rank_that_is_slow_in_one_of_three_steps_is_not_named(ranks: int) -> None:
    sometimes = work(ranks, 30)
    sometimes[1, Phase.DATA, ::3] += 50 * MS
    assert find_slow_rank(sometimes, WORK_STEP) is None


def test_a_rank_slower_in_one_phase_and_faster_in_another_is_not_named() -> None:
    shifted = work(4, 20)
    shifted[1, Phase.FORWARD] += 5 * MS
    shifted[1, Phase.BACKWARD] -= 5 * MS
    assert find_slow_rank(shifted, WORK_STEP) is None


def test_no_slow_rank_is_named_below_two_percent_of_the_step_or_in_few_steps() -> None:
    little = work(4, 20)
    little[0, Phase.DATA] += 1.5 * MS
    assert find_slow_rank(little, WORK_STEP) is None
    # With 8 steps the p-value is 20 / 2**8, which is more than 0.01.
    few = work(4, 8)
    few[0, Phase.DATA] += 30 * MS
    assert find_slow_rank(few, WORK_STEP) is None
    assert find_slow_rank(work(1, 20), WORK_STEP) is None
    assert find_slow_rank(work(4, 0), WORK_STEP) is None


def test_of_two_slow_ranks_one_is_named_only_if_it_is_twice_as_slow() -> None:
    two = work(6, 20)
    two[1, Phase.DATA] += 10 * MS
    two[4, Phase.BACKWARD] += 10 * MS
    assert find_slow_rank(two, WORK_STEP) is None
    # 21 ms are more than twice the 10 ms of rank 1.
    two[4, Phase.BACKWARD] += 11 * MS
    slow = find_slow_rank(two, WORK_STEP)
    assert slow is not None
    assert slow.rank == 4


def late(phase: str | None, share: float, rank: int = 2) -> LateRank:
    return LateRank(rank, 5 * MS, 0.9, 0.001, 20, 20, 0.3, phase, share)


def test_a_late_rank_explained_by_a_phase_or_with_unknown_phases_is_kept() -> None:
    found = late("data", 0.9)
    assert late_by_own_work(found, None, np.ones((20, 4)), WORK_STEP) is found
    unknown = late(None, float("nan"))
    assert late_by_own_work(unknown, None, np.ones((20, 4)), WORK_STEP) is unknown


def test_a_late_rank_without_a_phase_is_kept_only_if_its_own_work_is_slow() -> None:
    slower = work(4, 20)
    slower[2, Phase.FORWARD] += 6 * MS
    slow = find_slow_rank(slower, WORK_STEP)
    assert late_by_own_work(late(None, 0.3), None, np.ones((20, 4)), WORK_STEP) is None
    named = late_by_own_work(late(None, 0.3), slow, np.ones((20, 4)), WORK_STEP)
    assert named is not None
    assert (named.rank, named.phase, named.slower_ms) == (2, "forward", 6.0)


def test_a_slow_rank_is_named_late_with_the_waiting_it_caused_if_any() -> None:
    slower = work(4, 20)
    slower[2, Phase.FORWARD] += 6 * MS
    slow = find_slow_rank(slower, WORK_STEP)
    waited = np.full((20, 4), 6.0 * MS)
    assert find_late_rank(waited, WORK_STEP) is None
    named = late_by_own_work(None, slow, waited, WORK_STEP)
    assert named is not None
    assert slow is not None
    assert (named.rank, named.phase, named.p_value) == (2, "forward", slow.p_value)
    assert (named.wait_ns, named.share) == (2.0 * MS, 0.25)
    # Most of a pipeline's waiting is its bubble, so a late rank's share of the waiting is small.
    bubble = np.full((20, 4), 60.0 * MS)
    bubble[:, 2] = 6.0 * MS
    named = late_by_own_work(None, slow, bubble, WORK_STEP)
    assert named is not None
    assert (named.rank, named.share) == (2, pytest.approx(6 / 186))
    # Each of the three other ranks waits for 1.9 % of the step, which is below the limit of 2 %.
    bubble[:, 2] = 3 * 0.019 * WORK_STEP
    assert late_by_own_work(None, slow, bubble, WORK_STEP) is None
    bubble[:, [0, 1, 3]] = 0
    named = late_by_own_work(None, slow, bubble, WORK_STEP)
    assert named is not None
    assert (named.rank, named.share) == (2, 1.0)
    waited[:, 2] = 0
    assert late_by_own_work(None, slow, waited, WORK_STEP) is None


def test_a_rank_that_is_slow_in_one_stretch_of_steps_is_not_named() -> None:
    slower = work(2, 48)
    slower[1, Phase.FORWARD, :36] += 6 * MS
    assert find_slow_rank(slower, WORK_STEP) is None
    shuffled = work(2, 48)
    shuffled[1, Phase.FORWARD, np.arange(48) % 4 != 0] += 6 * MS
    assert find_slow_rank(shuffled, WORK_STEP) is not None


def test_a_slow_rank_in_few_correlated_steps_is_not_named() -> None:
    """The unbiased correlation of these 20 steps is 0.35, so the steps count as 9.

    The biased correlation of 0.25 would count 12 steps and name the rank.
    """
    alike = work(4, 20)
    alike[2, Phase.FORWARD] += 6 * MS
    alike[2, Phase.FORWARD, [0, 5, 6, 12, 13]] -= 5.5 * MS
    assert find_slow_rank(alike, WORK_STEP) is None


STEP = 100.0 * MS


def waits(steps: int, ranks: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.zeros((steps, ranks))


def test_a_rank_that_is_always_late_is_named_with_what_it_costs() -> None:
    waited = waits(12, 4)
    waited[:, 2] = 30 * MS
    late = find_late_rank(waited, STEP)
    assert late is not None
    assert (late.rank, late.wait_ns, late.share) == (2, 10.0 * MS, 1.0)
    assert (late.late_steps, late.measured_steps) == (12, 12)
    # The three other ranks wait 30 ms together in each of 12 steps.
    assert late.cost_s == pytest.approx(0.36)
    # With 2,000 permutations, the smallest possible p-value is 1 / 2001.
    assert late.p_value == 1 / 2001


def test_a_rank_that_is_late_in_every_third_step_is_named() -> None:
    random = np.random.default_rng(1)
    waited = random.uniform(0, 0.5 * MS, (60, 4))
    waited[::3, 3] += 60 * MS
    late = find_late_rank(waited, STEP)
    assert late is not None
    assert late.rank == 3
    # In 20 of 60 steps three ranks wait 60 ms together: 60 / 3 / 3 = 6.7 ms, and a little noise.
    assert late.wait_ns == pytest.approx(6.75 * MS, rel=0.02)
    assert (late.late_steps, late.measured_steps) == (20, 60)


def test_two_ranks_that_are_late_alternately_are_not_named() -> None:
    waited = waits(60, 4)
    waited[::2, 1] = 30 * MS
    waited[1::2, 2] = 30 * MS
    assert find_late_rank(waited, STEP) is None


def test_one_of_two_ranks_that_is_late_in_three_steps_is_not_named() -> None:
    waited = waits(10, 2)
    # By chance, three of three late steps fall on the same of two ranks once in four cases.
    waited[:3, 1] = 50 * MS
    assert find_late_rank(waited, STEP) is None


def test_with_two_ranks_six_late_steps_are_too_few_and_nine_suffice() -> None:
    # By chance, n late steps have a probability of 2 * 2**-n: 3.1 % for six, 0.4 % for nine.
    waited = waits(9, 2)
    waited[:, 0] = 50 * MS
    assert find_late_rank(waited[:6], STEP) is None
    late = find_late_rank(waited, STEP)
    assert late is not None
    assert late.p_value == pytest.approx(2 / 512, abs=0.004)


@pytest.mark.parametrize(("wait_ms", "named"), [(1.9, False), (2.1, True)])
def test_lateness_below_two_percent_of_the_step_is_not_named(wait_ms: float, named: bool) -> None:
    waited = waits(30, 3)
    waited[:, 1] = 2 * wait_ms * MS
    assert (find_late_rank(waited, STEP) is not None) is named


@pytest.mark.parametrize(("share", "named"), [(0.55, False), (0.65, True)])
def test_a_rank_that_causes_too_little_of_the_waiting_is_not_named(
    share: float, named: bool
) -> None:
    waited = waits(40, 3)
    waited[:, 1] = share * 60 * MS
    waited[:, 2] = (1 - share) * 60 * MS
    assert (find_late_rank(waited, STEP) is not None) is named


def test_random_waiting_hardly_ever_names_a_late_rank() -> None:
    named = [
        find_late_rank(np.random.default_rng(seed).exponential(20 * MS, (12, 4)), STEP)
        for seed in range(100)
    ]
    assert sum(late is not None for late in named) <= 2


def test_a_randomly_chosen_late_rank_per_step_is_hardly_ever_named() -> None:
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
def test_no_late_rank_if_no_other_rank_waits(waited: np.ndarray) -> None:  # type: ignore[type-arg]
    assert find_late_rank(waited, STEP) is None


def test_few_late_steps_of_a_long_run_name_no_late_rank() -> None:
    waited = waits(1_300, 2)
    # By chance, four late steps fall on the same of two ranks with a probability of 2 * 2**-4.
    waited[::400, 1] = 1_000 * MS
    assert find_late_rank(waited, STEP) is None
    waited[::50, 1] = 1_000 * MS
    late = find_late_rank(waited, STEP)
    assert late is not None
    assert (late.rank, late.late_steps) == (1, 26)


def test_the_late_rank_of_a_long_run_is_found_within_the_time_limit() -> None:
    random = np.random.default_rng(3)
    waited = random.uniform(0, MS, (20_000, 8))
    waited[:, 5] += 50 * MS
    # Other processes use the machine too, so CPU time is measured.
    begin = time.process_time()
    late = find_late_rank(waited, STEP)
    assert time.process_time() - begin < 1.5
    assert late is not None
    assert isinstance(late, LateRank)
    assert late.rank == 5


@pytest.mark.parametrize(
    ("clock_error_ms", "named"), [(0.0, True), (4.9, True), (5.0, False), (float("nan"), False)]
)
def test_no_late_rank_is_named_if_clock_errors_could_explain_the_wait(
    clock_error_ms: float, named: bool
) -> None:
    waited = waits(12, 4)
    waited[:, 2] = 30 * MS
    # The three other ranks wait 10 ms each. Two clocks that are 5 ms off would look the same.
    assert (find_late_rank(waited, STEP, clock_error_ms * MS) is not None) == named


def test_a_rank_that_is_late_in_one_stretch_of_steps_is_not_named() -> None:
    # A busy machine once delayed 10 consecutive steps of 57 like this.
    waited = np.random.default_rng(5).exponential(0.3 * MS, (57, 2))
    waited[21:31, 0] = 35 * MS
    assert find_late_rank(waited, STEP) is None
    spread = np.random.default_rng(5).exponential(0.3 * MS, (57, 2))
    spread[3:57:5, 0] = 35 * MS
    late = find_late_rank(spread, STEP)
    assert late is not None
    assert late.rank == 0


def test_a_rank_that_is_late_by_equal_times_in_all_steps_is_named() -> None:
    """Rounding makes equal values differ from their mean; such differences are no correlation."""
    for late_ns in np.linspace(19e6, 21e6, 40):
        waited_for = np.zeros((23, 2))
        waited_for[:, 1] = late_ns + np.arange(23)
        late = find_late_rank(waited_for, 50.3e6 + late_ns / 7, 0.0)
        assert late is not None
        assert late.rank == 1


def test_a_late_rank_in_few_correlated_steps_is_not_named() -> None:
    """The unbiased correlation of these 20 steps is 0.35, so 3 steps count as 1.

    Seven blocks then agree by chance with p = 2 / 2**7, which is more than 0.01.
    """
    waited = np.zeros((20, 2))
    waited[:, 1] = 30 * MS
    waited[[0, 5, 6, 12, 13], 1] = 0
    assert find_late_rank(waited, STEP) is None


def in_pairs(waited: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    by_waiting = np.zeros((waited.shape[1], waited.shape[1]))
    for rank, caused in enumerate(waited.sum(axis=0)):
        by_waiting[rank ^ 1, rank] = caused
    return by_waiting


@pytest.mark.parametrize("ranks", [8, 64])
def test_a_late_rank_with_one_waiting_rank_costs_it_all_of_the_waiting(ranks: int) -> None:
    waited = np.random.default_rng(2).uniform(0, 0.01 * MS, (30, ranks))
    waited[:, 7] = 40 * MS
    late = find_late_rank(waited, STEP, by_waiting_ns=in_pairs(waited))
    assert late is not None
    assert (late.rank, late.waiting_ranks, late.late_steps) == (7, 1, 30)
    assert late.wait_ns == pytest.approx(40 * MS)


@pytest.mark.parametrize("steps", [3, 5, 7, 9])
def test_a_late_rank_of_a_pair_among_many_ranks_is_named_from_eight_steps_on(steps: int) -> None:
    waited = waits(steps, 8)
    waited[:, 7] = 40 * MS
    late = find_late_rank(waited, STEP, by_waiting_ns=in_pairs(waited))
    assert enough_steps(waited, in_pairs(waited)) == 8
    assert (late is not None) == (steps >= 8)


@pytest.mark.parametrize(("ranks", "steps"), [(2, 8), (3, 6), (8, 4), (64, 3), (1024, 2)])
def test_so_many_steps_are_enough_to_name_a_rank(ranks: int, steps: int) -> None:
    """``steps`` is the smallest number for which ranks ** (1 - steps) is at most 1 %."""
    waited = np.zeros((2, ranks))
    waited[:, 1] = 40 * MS
    by_waiting = np.zeros((ranks, ranks))
    by_waiting[:, 1] = 40 * MS
    by_waiting[1, 1] = 0
    assert enough_steps(waited, by_waiting) == steps


def of_few_steps(longer_ns: np.ndarray) -> LateRank | None:  # type: ignore[type-arg]
    waited = longer_ns.max(axis=0) - longer_ns
    last = longer_ns.argmax(axis=0)
    waited_for, by_waiting = np.zeros(longer_ns.T.shape), np.zeros(2 * (len(longer_ns),))
    for step, rank in enumerate(last.tolist()):
        waited_for[step, rank] = waited[:, step].sum()
        by_waiting[:, rank] += waited[:, step]
    ranks = list(range(len(longer_ns)))
    return late_rank_of_few_steps(waited_for, waited, ranks, STEP, 0.0, by_waiting)


def test_in_few_steps_a_rank_is_named_by_the_spread_of_all() -> None:
    later = np.array([[30.0, 26.0, 28.0], [0, 0, 0]]) * MS
    # Student's t with two degrees of freedom is 28 ms / 1.155 ms = 24.25.
    late = of_few_steps(later)
    assert late is not None
    assert (late.rank, late.p_value) == (0, pytest.approx(2 * 0.000848, rel=1e-3))
    assert of_few_steps(np.array([[30.0, 20.0, 25.0], [0, 0, 0]]) * MS) is None
    assert of_few_steps(np.array([[30.0, -1.0], [0, 0]]) * MS) is None


@pytest.mark.parametrize("steps", [2, 3, 4])
@pytest.mark.parametrize("ranks", [2, 4, 8, 64])
def test_in_few_steps_of_ranks_that_are_alike_hardly_ever_one_is_named(
    ranks: int, steps: int
) -> None:
    random = np.random.default_rng(ranks * steps)
    longer = random.normal(0, 20 * MS, (400, ranks, steps))
    assert sum(of_few_steps(each) is not None for each in longer) <= 8
    # Rank 0 is late by ten times the spread of one step.
    longer[:, 0] += 200 * MS
    named = [late.rank for each in longer if (late := of_few_steps(each)) is not None]
    assert set(named) <= {0}
    fewest = {(2, 2): 20, (2, 3): 300}.get((ranks, steps), 370)
    assert len(named) >= fewest


def test_ranks_that_hardly_wait_for_the_late_rank_are_not_counted() -> None:
    waited = waits(12, 4)
    waited[:, 2] = 22.9 * MS
    by_waiting = np.zeros((4, 4))
    by_waiting[:, 2] = 12 * np.array([10, 12, 0, 0.9]) * MS
    late = find_late_rank(waited, STEP, by_waiting_ns=by_waiting)
    assert late is not None
    assert (late.waiting_ranks, late.cost_s) == (2, pytest.approx(12 * 0.0229))
    assert late.wait_ns == pytest.approx(11 * MS)
    by_waiting[:, 2] = 12 * np.array([10, 11.5, 0, 1.4]) * MS
    late = find_late_rank(waited, STEP, by_waiting_ns=by_waiting)
    assert late is not None
    assert (late.waiting_ranks, late.wait_ns) == (3, pytest.approx(22.9 / 3 * MS))


def test_of_two_ranks_that_wait_for_each_other_at_random_hardly_ever_one_is_named() -> None:
    named = 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        # Only ranks 0 and 1 wait, for each other. By chance, one of them is late in 60 % of the
        # steps.
        waited = waits(20, 64)
        waited[np.arange(20), random.integers(0, 2, 20)] = 30 * MS
        named += find_late_rank(waited, STEP, by_waiting_ns=in_pairs(waited)) is not None
    assert named <= 2


@pytest.mark.parametrize(("clock_error_ms", "named"), [(0.9, True), (1.0, False)])
def test_no_slow_rank_is_named_if_clock_errors_could_explain_the_wait_for_it(
    clock_error_ms: float, named: bool
) -> None:
    slower = work(4, 20)
    slower[2, Phase.FORWARD] += 6 * MS
    caused = np.zeros((20, 4, len(CAUSES)))
    caused[:, :, CAUSES.index("forward")] = 6 * MS
    by_waiting = np.full((4, 4), 20 * 2.0 * MS)
    np.fill_diagonal(by_waiting, 0)
    late = late_rank(caused, by_waiting, slower, range(4), WORK_STEP, clock_error_ms * MS)
    assert (late is not None) == named


def test_the_late_rank_s_share_is_of_all_waiting_including_waiting_for_cores() -> None:
    caused = np.zeros((20, 4, len(CAUSES)))
    caused[:, 2, CAUSES.index("forward")] = 12 * MS
    caused[:, 1, CAUSES.index(NO_CORE)] = 18 * MS
    by_waiting = np.zeros((4, 4))
    by_waiting[[0, 1, 3], 2] = 20 * 4 * MS
    late = late_rank(caused, by_waiting, work(4, 20), range(4), STEP, 0.0)
    assert late is not None
    assert (late.rank, late.phase, late.wait_ns) == (2, "forward", 4 * MS)
    assert late.share == pytest.approx(0.4)
