"""The rank test against values that can be counted by hand or by brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from commprof.stats.rank_tests import (
    holm,
    least_p,
    midranks,
    rank_test,
    two_sided,
    with_correlation,
)


def by_counting(first: list[float], second: list[float]) -> float:
    """The exact two-sided p-value, from all ways to choose which values are the first's."""
    ranks = midranks(np.array([*first, *second]))
    n, mean = len(first), len(first) * ranks.mean()
    observed = abs(ranks[:n].sum() - mean)
    sums = [sum(chosen) for chosen in itertools.combinations(ranks, n)]
    return sum(abs(total - mean) >= observed - 1e-9 for total in sums) / len(sums)


def test_a_normal_value_is_beyond_1_96_deviations_once_in_twenty() -> None:
    assert two_sided(1.959964) == pytest.approx(0.05, abs=1e-6)
    assert two_sided(-1.959964) == two_sided(1.959964)
    assert two_sided(0.0) == 1


def test_p_values_that_are_known() -> None:
    # Of the C(6, 3) = 20 ways to draw, 2 are as extreme as all below all.
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
def test_ties_and_unequal_lengths_are_exact(first: list[float], second: list[float]) -> None:
    assert rank_test(first, second) == pytest.approx(by_counting(first, second))


def test_equal_or_missing_values_are_no_difference() -> None:
    assert rank_test([2, 2, 2], [2, 2]) == 1.0
    assert rank_test([], [1, 2]) == 1.0


def test_correlated_values_say_less() -> None:
    p = math.erfc(4 / math.sqrt(2))  # four standard deviations
    assert with_correlation(p, 0.0) == p == with_correlation(p, -0.5)
    # r = 0.6 leaves a quarter of the values, and half the deviate.
    assert with_correlation(p, 0.6) == pytest.approx(math.erfc(2 / math.sqrt(2)))
    assert with_correlation(1.0, 0.6) == 1.0


def test_midranks_share_the_mean() -> None:
    assert midranks(np.array([30.0, 10, 20, 20])).tolist() == [4, 1, 2.5, 2.5]


def test_large_samples_agree_with_the_exact_test() -> None:
    random = np.random.default_rng(1)
    first, second = random.normal(0, 1, 30), random.normal(0.6, 1, 30)
    exact = rank_test(first.tolist(), second.tolist())
    # The same values and two more in the middle of each: now by the normal approximation.
    more = [0.3001, 0.3002]
    normal = rank_test([*first, *more], [*second, *more])
    assert exact == pytest.approx(normal, rel=0.25)


def test_equal_distributions_are_told_apart_as_often_as_chance_has_it() -> None:
    random = np.random.default_rng(2)
    trials = 2000
    found = sum(
        rank_test(random.lognormal(size=10).tolist(), random.lognormal(size=10).tolist()) < 0.05
        for _ in range(trials)
    )
    # The exact test of 10 against 10 rejects with 4.33 % at 5 %; four standard deviations.
    deviation = math.sqrt(trials * 0.0433 * 0.9567)
    assert abs(found - trials * 0.0433) < 4 * deviation


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []
