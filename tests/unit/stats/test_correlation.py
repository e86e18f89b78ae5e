"""How much values say whose neighbours are alike, and the spread of disturbed ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from commprof.stats.correlation import LARGEST, cautious_worth, lag_one, worth
from commprof.stats.robust import robust_deviation


def alike(r: float, count: int, seed: int) -> npt.NDArray[np.float64]:
    """A stationary autoregressive series whose lag-1 correlation is r."""
    random = np.random.default_rng(seed)
    values = [random.normal()]
    for _ in range(count - 1):
        values.append(r * values[-1] + np.sqrt(1 - r**2) * random.normal())
    return np.array(values)


@pytest.mark.parametrize("count", [20, 50])
@pytest.mark.parametrize("r", [0.0, 0.5, 0.8])
def test_few_values_show_the_correlation_of_many(r: float, count: int) -> None:
    found = [lag_one(alike(r, count, seed)) for seed in range(1000)]
    assert np.mean(found) == pytest.approx(r, abs=0.08)


def test_two_samples_are_each_about_their_own_mean() -> None:
    found = [lag_one(alike(0.5, 30, s), 9 + alike(0.5, 40, s + 5000)) for s in range(500)]
    assert np.mean(found) == pytest.approx(0.5, abs=0.06)


def test_values_that_cannot_show_it() -> None:
    assert lag_one(np.full(20, 0.1)) == 0
    assert lag_one(np.array([1.0, 2.0, 4.0])) == LARGEST


def test_what_a_value_is_worth() -> None:
    assert worth(0.5) == pytest.approx(1 / 3)
    assert worth(-0.5) == 1
    assert worth(1.0) == pytest.approx(0.01 / 1.99)
    values = alike(0.5, 50, 1)
    assert cautious_worth(values) < worth(lag_one(values))


def test_the_spread_of_disturbed_values() -> None:
    values = np.random.default_rng(3).normal(10, 2, size=5000)
    values[:500] += 1000
    assert robust_deviation(values) == pytest.approx(2, rel=0.2)
    assert robust_deviation([1.0, 2.0, 3.0, 4.0, 100.0]) == pytest.approx(1.4826)
    assert robust_deviation([1.0, -3.0, 5.0], about=0.0) == pytest.approx(3 * 1.4826)
