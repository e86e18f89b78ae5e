"""The trend of a loss, on values whose rank correlation can be counted by hand."""

from __future__ import annotations

import math
import random

import pytest

from commprof.analysis.checks.loss_trend import loss_trend


def test_a_loss_that_falls_at_every_step() -> None:
    trend = loss_trend([float(n) for n in range(12, 0, -1)])
    assert trend is not None
    assert (trend.tau, trend.first, trend.last) == (-1.0, 12.0, 1.0)
    # All 66 pairs fall; the variance is 12 * 11 * 29 / 18.
    assert trend.p_value == pytest.approx(math.erfc(65 / math.sqrt(12 * 11 * 29 / 18) / 2**0.5))
    assert (trend.falls, trend.rises) == (True, False)


def test_a_loss_that_rises() -> None:
    trend = loss_trend([n + 0.5 * (n % 2) for n in range(30)])
    assert trend is not None
    assert (trend.falls, trend.rises) == (False, True)


def test_noise_has_no_trend() -> None:
    found = 0
    for seed in range(300):
        chance = random.Random(seed)
        trend = loss_trend([chance.gauss(4, 0.1) for _ in range(40)])
        assert trend is not None
        found += trend.falls or trend.rises
    assert found <= 10  # of 300 at a level of 1 %: 3, and 4 standard deviations more


def test_equal_losses_have_none() -> None:
    trend = loss_trend([2.0] * 20)
    assert trend is not None
    assert (trend.tau, trend.p_value, trend.falls, trend.rises) == (0.0, 1.0, False, False)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_loss_that_is_no_number(broken: float) -> None:
    trend = loss_trend([3.0] * 7 + [broken] * 13)
    assert trend is not None
    assert trend.not_finite == 7
    assert math.isnan(trend.tau)
    assert math.isnan(trend.last)


def test_few_losses_say_nothing() -> None:
    trend = loss_trend([3.0, 2.0, 1.0])
    assert trend is not None
    assert (trend.falls, trend.rises) == (False, False)
    assert loss_trend([]) is None


def test_a_long_training_is_thinned() -> None:
    trend = loss_trend([1 / (1 + n) for n in range(100_000)])
    assert trend is not None
    assert trend.tau == -1.0
    assert trend.steps == 100_000
