"""The rank test: against enumeration, against chance, and its correction for many questions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from commprof.analysis.step_test import adjusted, smallest_p_value, step_test


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
def test_it_is_near_the_exact_one(a: list[float], b: list[float]) -> None:
    assert step_test(np.array(a), np.array(b)) == pytest.approx(exact(a, b), abs=0.03)


def test_equal_values_say_nothing_and_no_values_nothing_at_all() -> None:
    same = np.full(10, 3.0)
    assert step_test(same, same) == 1.0
    assert math.isnan(step_test(same, np.zeros(0)))


def test_the_same_distribution_is_rarely_told_apart() -> None:
    random = np.random.default_rng(7)
    found = [step_test(random.normal(size=40), random.normal(size=30)) for _ in range(1000)]
    assert 0.03 < np.mean(np.array(found) < 0.05) < 0.07


def test_nor_is_it_where_neighbours_are_alike() -> None:
    random = np.random.default_rng(8)

    def walk() -> np.ndarray:
        values = np.zeros(200)
        for i in range(1, len(values)):
            values[i] = 0.6 * values[i - 1] + random.normal()
        return values

    found = np.array([step_test(walk(), walk()) for _ in range(400)])
    assert np.mean(found < 0.05) < 0.09  # without the correction it would be 0.3


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
