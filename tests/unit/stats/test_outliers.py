from __future__ import annotations

import math

import numpy as np
import pytest

from commprof.stats.outliers import chance_beyond, student_tail


@pytest.mark.parametrize(
    ("degrees", "deviate", "tail"),
    [
        # The values are from tables of quantiles of Student's t.
        (1, 6.3138, 0.05),
        (2, 2.9200, 0.05),
        (3, 4.5407, 0.01),
        (5, 2.0150, 0.05),
        (10, 3.1693, 0.005),
        (60, 3.2317, 0.001),
    ],
)
def test_tails_are_those_of_the_tables(degrees: int, deviate: float, tail: float) -> None:
    assert student_tail(deviate, degrees) == pytest.approx(tail, rel=1e-4)
    assert student_tail(-deviate, degrees) == pytest.approx(1 - tail, rel=1e-4)


def test_many_degrees_are_the_normal_distribution() -> None:
    assert student_tail(4.0, 10**6) == pytest.approx(math.erfc(4 / math.sqrt(2)) / 2, rel=1e-3)


def test_a_value_of_the_same_kind_is_beyond_as_often_as_said() -> None:
    draw = np.random.default_rng(3)
    samples = draw.normal(50, 7, (20_000, 6))
    chances = np.array([chance_beyond(float(row[0]), row[1:]) for row in samples])
    assert (chances <= 0.01).mean() == pytest.approx(0.01, abs=0.002)
    assert (chances <= 0.3).mean() == pytest.approx(0.3, abs=0.01)


def test_equal_and_too_few_others() -> None:
    assert chance_beyond(2.0, np.array([1.0, 1.0, 1.0])) == 0.0
    assert chance_beyond(1.0, np.array([1.0, 1.0, 1.0])) == 1.0
    assert chance_beyond(9.0, np.array([1.0])) == 1.0
