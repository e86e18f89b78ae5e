from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest

from commprof.stats.intervals import ratio_of_medians, robust_deviation
from commprof.stats.rank_tests import (
    LARGEST,
    adjusted,
    cautious_worth,
    holm,
    independent_share,
    lag_one,
    least_p,
    midranks,
    rank_test,
    smallest_p_value,
    step_test,
    two_sided,
    with_correlation,
    worth,
)


def alike(r: float, count: int, seed: int) -> npt.NDArray[np.float64]:
    random = np.random.default_rng(seed)
    values = [random.normal()]
    for _ in range(count - 1):
        values.append(r * values[-1] + np.sqrt(1 - r**2) * random.normal())
    return np.array(values)


@pytest.mark.parametrize("count", [20, 50])
@pytest.mark.parametrize("r", [0.0, 0.5, 0.8])
def test_the_estimated_correlation_of_few_values_is_nearly_unbiased(r: float, count: int) -> None:
    found = [lag_one(alike(r, count, seed)) for seed in range(1000)]
    assert np.mean(found) == pytest.approx(r, abs=0.08)


def test_the_correlation_of_two_samples_uses_each_sample_s_own_mean() -> None:
    found = [lag_one(alike(0.5, 30, s), 9 + alike(0.5, 40, s + 5000)) for s in range(500)]
    assert np.mean(found) == pytest.approx(0.5, abs=0.06)


def test_lag_one_correlation_is_zero_for_equal_values_and_limited_for_few() -> None:
    assert lag_one(np.full(20, 0.1)) == 0
    assert lag_one(np.array([1.0, 2.0, 4.0])) == LARGEST


def test_correlated_values_count_as_fewer_independent_ones() -> None:
    assert worth(0.5) == pytest.approx(1 / 3)
    assert worth(-0.5) == 1
    assert worth(1.0) == pytest.approx(0.01 / 1.99)
    values = alike(0.5, 50, 1)
    assert cautious_worth(values) < worth(lag_one(values))


def test_the_robust_deviation_ignores_disturbed_values() -> None:
    values = np.random.default_rng(3).normal(10, 2, size=5000)
    values[:500] += 1000
    assert robust_deviation(values) == pytest.approx(2, rel=0.2)
    assert robust_deviation([1.0, 2.0, 3.0, 4.0, 100.0]) == pytest.approx(1.4826)
    assert robust_deviation([1.0, -3.0, 5.0], about=0.0) == pytest.approx(3 * 1.4826)


def by_counting(first: list[float], second: list[float]) -> float:
    ranks = midranks(np.array([*first, *second]))
    n, mean = len(first), len(first) * ranks.mean()
    observed = abs(ranks[:n].sum() - mean)
    sums = [sum(chosen) for chosen in itertools.combinations(ranks, n)]
    return sum(abs(total - mean) >= observed - 1e-9 for total in sums) / len(sums)


def test_two_sided_probability_of_1_96_deviations_is_5_percent() -> None:
    assert two_sided(1.959964) == pytest.approx(0.05, abs=1e-6)
    assert two_sided(-1.959964) == two_sided(1.959964)
    assert two_sided(0.0) == 1


def test_the_rank_test_gives_known_p_values() -> None:
    # 2 of the C(6, 3) = 20 ways to draw three values are as extreme as these.
    assert rank_test([1, 2, 3], [4, 5, 6]) == pytest.approx(0.1)
    assert rank_test([4, 5, 6], [1, 2, 3]) == pytest.approx(0.1)
    assert rank_test([1], [2]) == 1.0
    assert rank_test([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]) == pytest.approx(2 / 252)
    assert least_p(10, 10) == pytest.approx(2 / 184_756)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([1, 3, 5, 7], [2, 4, 6, 8, 10]),
        ([1, 1, 2, 2], [2, 3, 3, 4]),
        ([5, 5, 5], [5, 5, 6]),
        ([0.1, 7, 2.5], [9, 2.5, 2.5, 8, 1]),
    ],
)
def test_the_rank_test_is_exact_with_ties_and_unequal_lengths(
    first: list[float], second: list[float]
) -> None:
    assert rank_test(first, second) == pytest.approx(by_counting(first, second))


def test_the_rank_test_gives_1_for_equal_or_missing_values() -> None:
    assert rank_test([2, 2, 2], [2, 2]) == 1.0
    assert rank_test([], [1, 2]) == 1.0


def test_correlation_raises_the_p_value() -> None:
    p = math.erfc(4 / math.sqrt(2))
    assert with_correlation(p, 0.0) == p == with_correlation(p, -0.5)
    # With r = 0.6 the values are worth a quarter of their number, which halves the deviate.
    assert with_correlation(p, 0.6) == pytest.approx(math.erfc(2 / math.sqrt(2)))
    assert with_correlation(1.0, 0.6) == 1.0


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    assert midranks(np.array([30.0, 10, 20, 20])).tolist() == [4, 1, 2.5, 2.5]


def test_the_rank_test_of_large_samples_is_close_to_the_exact_test() -> None:
    random = np.random.default_rng(1)
    first, second = random.normal(0, 1, 30), random.normal(0.6, 1, 30)
    exact = rank_test(first.tolist(), second.tolist())
    # Samples of 32 values use the normal approximation instead of the exact test.
    more = [0.3001, 0.3002]
    normal = rank_test([*first, *more], [*second, *more])
    assert exact == pytest.approx(normal, rel=0.25)


def test_the_rank_test_rejects_equal_distributions_at_its_stated_rate() -> None:
    random = np.random.default_rng(2)
    trials = 2000
    found = sum(
        rank_test(random.lognormal(size=10).tolist(), random.lognormal(size=10).tolist()) < 0.05
        for _ in range(trials)
    )
    # At a level of 5 % the exact test of 10 against 10 values rejects 4.33 %.
    deviation = math.sqrt(trials * 0.0433 * 0.9567)
    assert abs(found - trials * 0.0433) < 4 * deviation


def test_holm_correction_of_known_p_values() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def exact(a: list[float], b: list[float]) -> float:
    values = a + b

    def u(chosen: tuple[int, ...]) -> float:
        rest = [i for i in range(len(values)) if i not in chosen]
        return sum(
            (values[i] > values[j]) + 0.5 * (values[i] == values[j]) for i in chosen for j in rest
        )

    mean = len(a) * len(b) / 2
    seen = abs(u(tuple(range(len(a)))) - mean)
    ways = list(itertools.combinations(range(len(values)), len(a)))
    return sum(abs(u(way) - mean) >= seen - 1e-9 for way in ways) / len(ways)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([1.0, 4.0, 2.0, 6.0, 3.0, 8.0], [5.0, 9.0, 7.0, 11.0, 10.0, 12.0]),
        ([5.0, 1.0, 9.0, 3.0, 7.0, 2.0], [6.0, 4.0, 8.0, 10.0, 0.0, 5.5]),
        ([3.0, 1.0, 3.0, 2.0, 3.0, 1.0], [3.0, 5.0, 4.0, 6.0, 3.0, 7.0]),
    ],
)
def test_the_step_test_is_close_to_the_exact_test(
    a: list[float], b: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commprof.stats.rank_tests.cautious_worth", lambda *_: 1.0)
    assert step_test(np.array(a), np.array(b)) == pytest.approx(exact(a, b), abs=0.03)


def test_the_step_test_gives_1_for_equal_values_and_nan_for_none() -> None:
    same = np.full(10, 3.0)
    assert step_test(same, same) == 1.0
    assert math.isnan(step_test(same, np.zeros(0)))


def test_the_step_test_rejects_equal_distributions_in_about_5_percent() -> None:
    random = np.random.default_rng(7)
    found = [step_test(random.normal(size=40), random.normal(size=30)) for _ in range(1000)]
    assert 0.03 < np.mean(np.array(found) < 0.05) < 0.07


def steps_alike(random: np.random.Generator, steps: int, r: float) -> np.ndarray:
    values = random.normal(size=steps)
    for i in range(1, steps):
        values[i] = r * values[i - 1] + math.sqrt(1 - r * r) * values[i]
    return 100 + 3 * values


@pytest.mark.parametrize("steps", [10, 40, 78])
@pytest.mark.parametrize("r", [0.0, 0.5, 0.9])
def test_the_step_test_rarely_rejects_equal_correlated_steps(steps: int, r: float) -> None:
    random = np.random.default_rng(8)
    pairs = [(steps_alike(random, steps, r), steps_alike(random, steps, r)) for _ in range(200)]
    found = np.array([step_test(*pair) for pair in pairs])
    # The bound is 5 % plus two standard errors of 200 draws.
    # With r as estimated, up to 48 % of the pairs were rejected.
    assert np.mean(found < 0.05) <= 0.08


@pytest.mark.parametrize(
    ("steps", "r", "factor", "least"),
    [(10, 0.0, 1.10, 0.7), (40, 0.0, 1.05, 0.95), (40, 0.5, 1.10, 0.95), (78, 0.5, 1.05, 0.95)],
)
def test_the_step_test_detects_a_real_change(
    steps: int, r: float, factor: float, least: float
) -> None:
    random = np.random.default_rng(9)
    pairs = [
        (steps_alike(random, steps, r), factor * steps_alike(random, steps, r)) for _ in range(200)
    ]
    assert np.mean([step_test(*pair) < 0.05 for pair in pairs]) >= least


def test_the_ratio_s_interval_covers_the_truth_if_steps_are_correlated() -> None:
    random = np.random.default_rng(10)
    held = 0
    for _ in range(200):
        a, b = steps_alike(random, 40, 0.5), 1.05 * steps_alike(random, 40, 0.5)
        held += ratio_of_medians(b, a, independent_share(a, b)).contains(1.05)
    # At least 93 % of the 200 intervals must hold the truth.
    assert held >= 186


def test_the_step_test_is_nan_for_few_highly_correlated_steps() -> None:
    slow = np.sin(np.arange(30) / 10)
    assert math.isnan(step_test(slow, 10 + slow))
    # The correlation is limited to 0.99, and (1 - 0.99) / (1 + 0.99) = 0.00503.
    assert independent_share(slow, 10 + slow) == pytest.approx(0.00503, abs=1e-5)
    assert independent_share(slow, np.zeros(0)) == 1.0
    by_turns = np.array([1.0, 2.0] * 15)
    assert independent_share(by_turns, 10 + by_turns) == 1.0


def test_the_smallest_p_value_is_a_lower_bound_of_the_step_test() -> None:
    random = np.random.default_rng(9)
    low, high = random.permutation(20.0 + np.arange(20)), random.permutation(40.0 + np.arange(20))
    assert step_test(low, high) >= smallest_p_value(20, 20)
    assert smallest_p_value(20, 20) < 1e-6
    # The least p-value is that of z = (16 / 2 - 0.5) / sqrt(16 * 9 / 12) = 2.165.
    assert smallest_p_value(4, 4) == pytest.approx(0.0304, abs=1e-4)
    assert smallest_p_value(3, 4) > 0.05
    assert smallest_p_value(0, 4) == 1.0


def test_adjusted_p_values_follow_holm_and_keep_nan() -> None:
    # Holm's factors for the sorted p-values are 4, 3, 2 and 1; no result is below the one before.
    assert adjusted([0.03, 0.01, math.nan, 0.5, 0.02]) == pytest.approx(
        [0.06, 0.04, math.nan, 0.5, 0.06], nan_ok=True
    )
