from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from commprof.analysis.step.overhead import OwnCost, overhead, pooled_overhead
from commprof.stats.intervals import Interval, ratio_of_medians, signed_rank_ratio
from commprof.workloads.loop import overhead_states


def turns(times: list[float], on: float, lot: str = "") -> list[tuple[str, float, float]]:
    """``on`` is the factor by which capture lengthens a step."""
    labels = overhead_states(len(times), lot)
    found = [(x, t * on if x == "on" else t) for x, t in zip(labels, times, strict=True)]
    return [(label, time, time / 2) for label, time in found]


def test_the_ratio_of_constant_samples_has_an_interval_of_zero_width() -> None:
    ratio = ratio_of_medians(np.full(5, 30.0), np.full(7, 20.0))
    assert ratio == Interval(1.5, 1.5, 1.5)


def test_the_ratio_of_medians_lies_within_its_interval() -> None:
    ratio = ratio_of_medians(np.array([1.0, 9.0, 3.0]), np.array([4.0, 2.0]))
    assert ratio.value == 1.0
    # Resampled medians are among the samples, so the furthest ratios are 1 / 4 and 9 / 2.
    assert 0.25 <= ratio.low <= 1.0 <= ratio.high <= 4.5


def test_the_interval_of_a_ratio_covers_the_true_ratio_in_about_95_percent() -> None:
    covered = 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        above, below = random.normal(105, 5, 30), random.normal(100, 5, 30)
        covered += ratio_of_medians(above, below).contains(1.05)
    assert 88 <= covered <= 100


def test_the_same_samples_give_the_same_interval() -> None:
    samples = np.random.default_rng(0).normal(100, 10, (2, 20))
    assert ratio_of_medians(*samples) == ratio_of_medians(*samples)


def test_a_ratio_with_an_empty_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="a sample is empty"):
        ratio_of_medians(np.array([]), np.array([1.0]))


@pytest.mark.parametrize(("x", "inside"), [(0.9, True), (1.0, True), (1.1, True), (1.11, False)])
def test_an_interval_contains_its_bounds(x: float, inside: bool) -> None:
    assert Interval(1.0, 0.9, 1.1).contains(x) is inside


def test_an_overhead_beyond_the_noise_is_distinguished_from_zero() -> None:
    result = overhead(turns([100.0] * 16, on=1.1))
    assert result is not None
    assert result.cpu == result.best
    for cost in (result.cpu, result.wall):
        assert cost is not None
        for found, value in ((cost.on_over_off, 1.1), (cost.control, 1.0)):
            assert (found.value, found.low, found.high) == pytest.approx((value, value, value))
        assert (cost.steps_on, cost.steps_off) == (8, 8)
        assert cost.told_apart


def test_cpu_time_is_used_only_if_it_was_measured_in_every_step() -> None:
    steps = turns([100.0] * 16, on=1.1)
    label, wall, _ = steps[3]
    # The CPU time is NaN if it was not measured, and 0 if its clock is too coarse.
    for unknown in (math.nan, 0.0):
        result = overhead([*steps[:3], (label, wall, unknown), *steps[4:]])
        assert result is not None
        assert result.cpu is None
        assert result.best == result.wall


def rhythmic(random: np.random.Generator) -> list[float]:
    return list(
        100 * np.exp(0.01 * random.normal(size=16) + 0.03 * np.isin(np.arange(16) % 8, (1, 3)))
    )


def alike(random: np.random.Generator, r: float) -> list[float]:
    values = random.normal(size=16)
    for i in range(1, len(values)):
        values[i] = r * values[i - 1] + math.sqrt(1 - r * r) * values[i]
    return list(100 * np.exp(0.05 * values))


def drifting(random: np.random.Generator) -> list[float]:
    slope = random.choice([-0.02, 0.02])
    return list(100 * np.exp(slope * np.arange(16) + 0.02 * random.normal(size=16)))


def disturbed(random: np.random.Generator) -> list[float]:
    values = 100 * np.exp(0.02 * random.normal(size=16))
    begin = int(random.geometric(0.1))
    while begin < len(values):
        end = begin + int(random.geometric(0.35))
        values[begin:end] *= random.uniform(1.3, 4)
        begin = end + int(random.geometric(0.1))
    return list(values)


@pytest.mark.parametrize("sizes", [2, 4])
@pytest.mark.parametrize(
    "steps",
    [
        *(lambda random, r=r: alike(random, r) for r in (0.0, 0.5, 0.9)),
        drifting,
        disturbed,
        rhythmic,
    ],
    ids=["independent", "r 0.5", "r 0.9", "drifting", "disturbed", "rhythmic"],
)
def test_overhead_intervals_cover_the_truth_in_about_95_percent(
    steps: Callable[[np.random.Generator], list[float]], sizes: int
) -> None:
    random = np.random.default_rng(3)
    held = np.zeros(2)
    for run in range(400):
        found = pooled_overhead(
            [turns(steps(random), 1.05, f"{run} {size}") for size in range(sizes)]
        )
        assert found is not None
        held += found.wall.on_over_off.contains(1.05), found.wall.control.contains(1.0)
    # 0.917 and 0.983 are 95 % minus and plus 3 standard errors of 400 draws.
    assert min(held) >= 400 * 0.917
    # There are 24 such counts. With 4 pairs, longer tails make Student's interval wider.
    assert held[0] <= 400 * 0.983


@pytest.mark.parametrize(
    ("n", "critical", "tail", "next_tail"),
    [
        (6, 0, 0.0156, 0.0312),
        (7, 2, 0.0234, 0.0391),
        (8, 3, 0.0195, 0.0273),
        (10, 8, 0.0244, 0.0322),
        (12, 13, 0.0212, 0.0261),
        (16, 29, 0.0222, 0.0253),
        (20, 52, 0.0242, 0.0266),
    ],
)
def test_signed_rank_bounds_have_the_critical_values_of_published_tables(
    n: int, critical: int, tail: float, next_tail: float
) -> None:
    # All pairwise means of powers of 2 differ, so there are no ties.
    values = 2.0 ** np.arange(n)
    first, second = np.triu_indices(n)
    means = np.sort((values[first] + values[second]) / 2) / values[-1]
    found = signed_rank_ratio(np.exp(values / values[-1]), np.ones(n))
    part = (0.025 - tail) / (next_tail - tail)
    for bound, outer, inner in (
        (found.low, means[critical], means[critical + 1]),
        (found.high, means[-1 - critical], means[-2 - critical]),
    ):
        step = inner - outer
        # The tails in the tables have four decimals.
        assert math.log(bound) == pytest.approx(outer + part * step, abs=0.02 * abs(step))


@pytest.mark.parametrize(
    ("on_over_off", "measurable", "told_apart"),
    [
        (Interval(1.010, 1.005, 1.015), True, True),
        (Interval(1.010, 0.999, 1.015), True, False),
        (Interval(0.990, 0.985, 0.995), True, True),
        (Interval(1.100, 1.050, 1.150), False, False),
        (Interval(0.958, 0.903, 0.975), False, False),
    ],
)
def test_an_overhead_with_a_wide_interval_is_not_measurable(
    on_over_off: Interval, measurable: bool, told_apart: bool
) -> None:
    cost = OwnCost(on_over_off, Interval(1.0, 0.9, 1.1), 8, 8)
    assert (cost.measurable, cost.told_apart) == (measurable, told_apart)


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [("off_a", 1.0), ("on", 1.0), ("off_b", 1.0), ("on", 1.0)],
        [("on", 1.0)] * 8,
        [("off_a", 1.0), ("off_b", 1.0)] * 4,
        [("off", 1.0), ("on", 2.0)] * 5,
    ],
    ids=["nothing", "one pair of off", "no off", "no on", "other labels"],
)
def test_overhead_is_none_with_too_few_pairs_of_steps(samples: list[tuple[str, float]]) -> None:
    assert overhead([(label, time, time) for label, time in samples]) is None


def test_overheads_of_world_sizes_are_pooled_as_ratios() -> None:
    result = pooled_overhead([turns([100.0] * 8, on=1.1), turns([1.0] * 8, on=1.1), []])
    assert result is not None
    assert result.wall.on_over_off.value == pytest.approx(1.1)
    assert (result.wall.steps_on, result.wall.steps_off) == (8, 8)


def test_the_pooled_overhead_without_pairs_is_none() -> None:
    assert pooled_overhead([]) is None
    assert pooled_overhead([[], []]) is None
    assert pooled_overhead([[("on", 1.0, 1.0)]]) is None
