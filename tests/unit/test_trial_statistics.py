"""Intervals over few rounds, against published quantiles and against simulated truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from commprof.trials.statistics import mean, ratio, student_t_quantile


@pytest.mark.parametrize(
    ("probability", "degrees", "quantile"),
    # Tables of Student's distribution, three digits after the point.
    [
        *((0.975, 1, 12.706), (0.975, 4, 2.776), (0.975, 7, 2.365), (0.975, 30, 2.042)),
        *((0.995, 4, 4.604), (0.95, 9, 1.833), (0.9995, 2, 31.599)),
    ],
)
def test_student_s_quantiles(probability: float, degrees: int, quantile: float) -> None:
    assert student_t_quantile(probability, degrees) == pytest.approx(quantile, abs=6e-4)


def test_ratios_are_paired_by_round() -> None:
    # Rounds differ by a factor of 10, the pairs always by 2.
    plain = np.array([1.0, 10.0, 3.0, 7.0])
    found = ratio(plain / 2, plain)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))


def test_the_value_is_the_geometric_mean() -> None:
    found = ratio(np.array([2.0, 8.0, 4.0]), np.ones(3))
    assert found is not None
    assert found.value == pytest.approx(4.0)
    assert found.low < 4 < found.high


def test_too_few_rounds_give_nothing() -> None:
    assert mean(np.ones(2)) is None
    assert mean(np.array([1.0, math.nan, 1.0])) is None


def test_a_higher_level_is_wider() -> None:
    values = np.random.default_rng(1).normal(size=10)
    usual, wide = mean(values), mean(values, 0.99)
    assert usual is not None
    assert wide is not None
    assert wide.low < usual.low < usual.high < wide.high


@pytest.mark.parametrize(("count", "least"), [(8, 0.9), (12, 0.9)])
def test_the_truth_is_covered_at_the_stated_rate(count: int, least: float) -> None:
    draw = np.random.default_rng(count)
    tries = 200
    covered = 0
    for _ in range(tries):
        found = mean(draw.normal(size=count))
        assert found is not None
        covered += found.contains(0.0)
    assert least <= covered / tries <= 0.99
