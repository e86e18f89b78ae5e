from __future__ import annotations

import numpy as np
import pytest

from commprof.stats.groups import two_groups


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_the_border_lies_between_two_groups(share: float) -> None:
    random = np.random.default_rng(3)
    values = random.normal(10.0 * (random.random(200) < share), 1.0)
    border = two_groups(values)
    assert border is not None
    assert np.mean(values > border) == pytest.approx(share, abs=0.08)


@pytest.mark.parametrize("count", [10, 30, 100, 1000])
def test_samples_of_one_normal_distribution_are_seldom_two_groups(count: int) -> None:
    random = np.random.default_rng(5)
    found = [two_groups(random.normal(size=count)) for _ in range(400)]
    assert sum(border is not None for border in found) <= 0.08 * len(found)


def test_a_few_outliers_are_not_a_second_group() -> None:
    values = np.random.default_rng(7).normal(size=100)
    values[:3] += 1000
    assert two_groups(values) is None


@pytest.mark.parametrize("values", [[], [1.0], [2.0] * 50])
def test_equal_or_single_values_are_one_group(values: list[float]) -> None:
    assert two_groups(np.array(values)) is None
