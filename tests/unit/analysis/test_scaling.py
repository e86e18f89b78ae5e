from __future__ import annotations

import math

import pytest

from commprof.analysis.scaling import Scaling, pool_overhead, scale
from tests.support.builders.results import world


def test_speedup_and_efficiency_are_relative_to_the_smallest_world_size() -> None:
    found = scale([world(1), world(2, samples_per_s=160.0), world(4, samples_per_s=240.0)])
    assert found == (Scaling(1, 1.0, 1.0), Scaling(2, 1.6, 0.8), Scaling(4, 2.4, 0.6))


def test_speedup_under_strong_scaling_is_the_ratio_of_throughputs() -> None:
    assert scale([world(1, samples_per_s=64 / 0.64), world(4, samples_per_s=64 / 0.2)])[1] == (
        Scaling(4, pytest.approx(3.2), pytest.approx(0.8))
    )


def test_efficiency_may_exceed_1() -> None:
    assert scale([world(1), world(2, samples_per_s=230.0)])[1].efficiency == pytest.approx(1.15)


def test_the_smallest_world_size_is_the_baseline_in_any_order() -> None:
    found = scale([world(8, samples_per_s=600.0), world(2, samples_per_s=200.0)])
    assert found == (Scaling(8, 3.0, 0.75), Scaling(2, 1.0, 1.0))


def test_speedup_is_nan_without_samples_per_second() -> None:
    for found in scale([world(1, samples_per_s=math.nan), world(2, samples_per_s=math.nan)]):
        assert math.isnan(found.speedup)
        assert math.isnan(found.efficiency)


def test_speedup_of_a_single_world_size_is_nan() -> None:
    (found,) = scale([world(4)])
    assert found.world_size == 4
    assert math.isnan(found.speedup)
    assert math.isnan(found.efficiency)


def test_no_worlds_have_no_scaling_and_no_overhead() -> None:
    assert scale([]) == ()
    assert pool_overhead([]) is None


def test_overhead_samples_of_all_world_sizes_are_pooled() -> None:
    samples = (
        *(("on", 2.0, 1.5), ("off_a", 1.0, 1.0)),
        *(("on", 2.0, 1.5), ("off_b", 1.0, 1.0)),
    ) * 2
    result = pool_overhead([world(1, overhead_samples=samples), world(2)])
    assert result is not None
    assert (result.wall.on_over_off.value, result.wall.steps_on) == (2.0, 4)
    assert result.best.on_over_off.value == pytest.approx(1.5)
