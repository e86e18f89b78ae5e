"""Ratios of medians with their intervals, and commprof's own cost from them."""

from __future__ import annotations

import numpy as np
import pytest

from commprof.analysis.intervals import Interval, ratio_of_medians
from commprof.analysis.overhead import Overhead, overhead, pooled_overhead


def block(on: list[float], off_a: list[float], off_b: list[float]) -> list[tuple[str, float]]:
    labelled = {"on": on, "off_a": off_a, "off_b": off_b}
    return [(label, time) for label, times in labelled.items() for time in times]


def test_equal_samples_have_an_interval_of_no_width() -> None:
    ratio = ratio_of_medians(np.full(5, 30.0), np.full(7, 20.0))
    assert ratio == Interval(1.5, 1.5, 1.5)


def test_the_value_is_the_ratio_of_the_medians() -> None:
    ratio = ratio_of_medians(np.array([1.0, 9.0, 3.0]), np.array([4.0, 2.0]))
    assert ratio.value == 1.0
    # Resampled medians lie among the samples: 1/4 and 9/2 are the furthest.
    assert 0.25 <= ratio.low <= 1.0 <= ratio.high <= 4.5


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    covered = 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        above, below = random.normal(105, 5, 30), random.normal(100, 5, 30)
        covered += ratio_of_medians(above, below).contains(1.05)
    assert 88 <= covered <= 100


def test_the_same_samples_give_the_same_interval() -> None:
    samples = np.random.default_rng(0).normal(100, 10, (2, 20))
    assert ratio_of_medians(*samples) == ratio_of_medians(*samples)


def test_an_empty_side_is_refused() -> None:
    with pytest.raises(ValueError, match="both sides"):
        ratio_of_medians(np.array([]), np.array([1.0]))


@pytest.mark.parametrize(("x", "inside"), [(0.9, True), (1.0, True), (1.1, True), (1.11, False)])
def test_an_interval_contains_its_bounds(x: float, inside: bool) -> None:
    assert Interval(1.0, 0.9, 1.1).contains(x) is inside


def test_a_cost_beyond_the_noise_is_told_apart() -> None:
    result = overhead(block([110.0] * 8, [100.0] * 4, [100.0] * 4))
    assert result == Overhead(Interval(1.1, 1.1, 1.1), Interval(1.0, 1.0, 1.0), 8, 8)
    assert result.told_apart


@pytest.mark.parametrize(
    ("on_over_off", "control", "told_apart"),
    [
        (Interval(1.10, 1.05, 1.15), Interval(1.0, 0.98, 1.02), True),
        (Interval(1.10, 0.99, 1.15), Interval(1.0, 0.98, 1.02), False),  # contains zero
        (Interval(1.10, 1.05, 1.15), Interval(1.0, 0.85, 1.02), False),  # the control's reach
        (Interval(1.10, 1.05, 1.15), Interval(1.0, 0.98, 1.11), False),
        (Interval(0.90, 0.85, 0.95), Interval(1.0, 0.98, 1.02), True),  # faster, for once
    ],
)
def test_told_apart(on_over_off: Interval, control: Interval, told_apart: bool) -> None:
    assert Overhead(on_over_off, control, 8, 8).told_apart is told_apart


@pytest.mark.parametrize(
    "samples",
    [
        [],
        block([], [1.0, 1.0], [1.0, 1.0]),
        block([1.0, 1.0], [1.0, 1.0], []),
        block([1.0, 1.0], [1.0], [1.0, 1.0]),
        [("off", 1.0), ("on", 2.0)] * 5,
    ],
    ids=["nothing", "no on", "no second off", "one of a label", "other labels"],
)
def test_too_few_steps_of_a_label_give_no_figure(samples: list[tuple[str, float]]) -> None:
    assert overhead(samples) is None


def test_world_sizes_are_pooled_as_multiples_of_their_own_off_step() -> None:
    # 10 % more at 100 ms a step and 10 % more at 1 ms a step are 10 % more.
    slow = block([110.0] * 4, [100.0] * 2, [100.0] * 2)
    fast = block([1.1] * 4, [1.0] * 2, [1.0] * 2)
    result = pooled_overhead([slow, fast, []])
    assert result is not None
    assert result.on_over_off.value == pytest.approx(1.1)
    assert (result.steps_on, result.steps_off) == (8, 8)


def test_nothing_to_pool() -> None:
    assert pooled_overhead([]) is None
    assert pooled_overhead([[], []]) is None
    assert pooled_overhead([[("on", 1.0)]]) is None
