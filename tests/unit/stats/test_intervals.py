from __future__ import annotations

import math

import numpy as np
import pytest

from commprof.stats.intervals import (
    center,
    interval_of,
    mean_of_rounds,
    ratio_of_rounds,
    resamples,
    student_t_quantile,
)


@pytest.mark.parametrize(
    ("probability", "degrees", "quantile"),
    # Published tables of Student's distribution give three digits after the point.
    [
        *((0.975, 1, 12.706), (0.975, 4, 2.776), (0.975, 7, 2.365), (0.975, 30, 2.042)),
        *((0.995, 4, 4.604), (0.95, 9, 1.833), (0.9995, 2, 31.599)),
    ],
)
def test_student_t_quantiles_equal_published_tables(
    probability: float, degrees: int, quantile: float
) -> None:
    assert student_t_quantile(probability, degrees) == pytest.approx(quantile, abs=6e-4)


def test_ratios_are_paired_by_round() -> None:
    plain = np.array([1.0, 10.0, 3.0, 7.0])
    found = ratio_of_rounds(plain / 2, plain)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))


def test_the_center_is_the_median_of_the_means_of_all_pairs() -> None:
    assert center(np.array([0.0, 1.0, 5.0])) == pytest.approx((1 + 2.5) / 2)
    assert center(np.array([[0.0, 1.0, 5.0], [2.0, 2.0, 2.0]])).tolist() == [1.75, 2.0]


def test_one_disturbed_round_hardly_changes_the_ratio() -> None:
    plain = np.ones(8)
    quiet = np.array([0.49, 0.5, 0.51, 0.5, 0.495, 0.505, 0.5, 0.5])
    disturbed = quiet.copy()
    disturbed[3] = 1.0
    found = ratio_of_rounds(disturbed, plain)
    assert found is not None
    assert found.value == pytest.approx(0.5, rel=0.01)
    assert found.high < 1


def test_the_mean_of_too_few_rounds_is_none() -> None:
    assert mean_of_rounds(np.ones(2)) is None
    assert mean_of_rounds(np.array([1.0, math.nan, 1.0])) is None


def test_an_interval_with_a_higher_level_is_wider() -> None:
    values = np.random.default_rng(1).normal(size=10)
    usual, wide = mean_of_rounds(values), mean_of_rounds(values, 0.99)
    assert usual is not None
    assert wide is not None
    assert wide.low < usual.low < usual.high < wide.high


@pytest.mark.parametrize("degrees", [3, math.inf])
@pytest.mark.parametrize("count", [3, 4, 6, 12])
def test_intervals_of_ratios_cover_the_truth_at_the_stated_rate(count: int, degrees: float) -> None:
    draw = np.random.default_rng(count)
    tries = 500
    covered = 0
    for _ in range(tries):
        wild = draw.normal(size=count) if degrees == math.inf else draw.standard_t(3, size=count)
        found = ratio_of_rounds(np.exp(0.2 + 0.1 * wild), np.ones(count))
        assert found is not None
        covered += found.contains(math.exp(0.2))
    # The stated rate is 95 %; two standard deviations of 500 tries are 2 %.
    assert covered / tries >= 0.93


@pytest.mark.parametrize("count", [3, 6])
def test_resampled_intervals_of_a_median_cover_the_truth_at_the_stated_rate(count: int) -> None:
    draw = np.random.default_rng(count)
    tries = 300
    covered = 0
    for _ in range(tries):
        values = draw.normal(1.0, 0.1, size=count)
        drawn = np.median(values[resamples(count)], axis=1)
        covered += interval_of(float(np.median(values)), drawn, count, 0.95).contains(1.0)
    assert covered / tries >= 0.925


def test_resamples_that_reach_infinity_leave_the_interval_open() -> None:
    drawn = np.array([1.0, 2.0, *[math.inf] * 98])
    found = interval_of(2.0, drawn, 6, 0.95)
    assert (found.value, found.high) == (2.0, math.inf)
    assert found.low <= 2.0
