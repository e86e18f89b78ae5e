"""The rank test: against enumeration, against chance, and its correction for many questions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from commprof.stats.intervals import ratio_of_medians
from commprof.stats.rank_tests import (
    adjusted,
    independent_share,
    smallest_p_value,
    step_test,
)


def exact(a: list[float], b: list[float]) -> float:
    """Two-sided p-value by all ways to deal the values out."""
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
def test_it_is_near_the_exact_one(
    a: list[float], b: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commprof.stats.rank_tests.cautious_worth", lambda *_: 1.0)
    assert step_test(np.array(a), np.array(b)) == pytest.approx(exact(a, b), abs=0.03)


def test_equal_values_say_nothing_and_no_values_nothing_at_all() -> None:
    same = np.full(10, 3.0)
    assert step_test(same, same) == 1.0
    assert math.isnan(step_test(same, np.zeros(0)))


def test_the_same_distribution_is_rarely_told_apart() -> None:
    random = np.random.default_rng(7)
    found = [step_test(random.normal(size=40), random.normal(size=30)) for _ in range(1000)]
    assert 0.03 < np.mean(np.array(found) < 0.05) < 0.07


def alike(random: np.random.Generator, steps: int, r: float) -> np.ndarray:
    """Steps of 100 ms with a standard deviation of 3, each like the one before: AR(1)."""
    values = random.normal(size=steps)
    for i in range(1, steps):
        values[i] = r * values[i - 1] + math.sqrt(1 - r * r) * values[i]
    return 100 + 3 * values


@pytest.mark.parametrize("steps", [10, 40, 78])
@pytest.mark.parametrize("r", [0.0, 0.5, 0.9])
def test_nor_is_it_where_neighbours_are_alike(steps: int, r: float) -> None:
    random = np.random.default_rng(8)
    pairs = [(alike(random, steps, r), alike(random, steps, r)) for _ in range(200)]
    found = np.array([step_test(*pair) for pair in pairs])
    # 5 % and 2 standard errors of 200 draws; with r as estimated it was up to 0.48.
    assert np.mean(found < 0.05) <= 0.08


@pytest.mark.parametrize(
    ("steps", "r", "factor", "least"),
    [(10, 0.0, 1.10, 0.7), (40, 0.0, 1.05, 0.95), (40, 0.5, 1.10, 0.95), (78, 0.5, 1.05, 0.95)],
)
def test_a_real_change_is_found(steps: int, r: float, factor: float, least: float) -> None:
    random = np.random.default_rng(9)
    pairs = [(alike(random, steps, r), factor * alike(random, steps, r)) for _ in range(200)]
    assert np.mean([step_test(*pair) < 0.05 for pair in pairs]) >= least


def test_the_ratio_s_interval_holds_where_neighbours_are_alike() -> None:
    random = np.random.default_rng(10)
    held = 0
    for _ in range(200):
        a, b = alike(random, 40, 0.5), 1.05 * alike(random, 40, 0.5)
        held += ratio_of_medians(b, a, independent_share(a, b)).contains(1.05)
    assert held >= 186  # 93 %


def test_too_few_steps_that_are_alike_say_nothing() -> None:
    slow = np.sin(np.arange(30) / 10)
    assert math.isnan(step_test(slow, 10 + slow))
    # r = 0.99 at most: 0.01 / 1.99
    assert independent_share(slow, 10 + slow) == pytest.approx(0.00503, abs=1e-5)
    assert independent_share(slow, np.zeros(0)) == 1.0
    by_turns = np.array([1.0, 2.0] * 15)
    assert independent_share(by_turns, 10 + by_turns) == 1.0


def test_what_no_value_contradicts_has_the_smallest_p_value() -> None:
    random = np.random.default_rng(9)
    low, high = random.permutation(20.0 + np.arange(20)), random.permutation(40.0 + np.arange(20))
    assert step_test(low, high) >= smallest_p_value(20, 20)
    assert smallest_p_value(20, 20) < 1e-6
    # z = (16 / 2 - 0.5) / sqrt(16 * 9 / 12) = 2.165
    assert smallest_p_value(4, 4) == pytest.approx(0.0304, abs=1e-4)
    assert smallest_p_value(3, 4) > 0.05
    assert smallest_p_value(0, 4) == 1.0


def test_correction_by_hand() -> None:
    # 0.01 * 4, then max(., 0.02 * 3), max(., 0.03 * 2), max(., 0.5 * 1)
    assert adjusted([0.03, 0.01, math.nan, 0.5, 0.02]) == pytest.approx(
        [0.06, 0.04, math.nan, 0.5, 0.06], nan_ok=True
    )
