from __future__ import annotations

import functools
import json
import math
import time
from pathlib import Path

import numpy as np
import pytest

from commprof.forecast.costs.cost_model import CostCurve, between, knots_through
from commprof.forecast.costs.machine_profile import (
    LinkProfile,
    MachineProfile,
    load_profile,
    save_profile,
)
from commprof.forecast.fit.fit import fit_curves
from commprof.forecast.fit.points import Point

SIZES = [float(1 << n) for n in range(10, 31)]


def bent(size: float) -> float:
    """Returns seconds of a library that changes its algorithm gradually, as NCCL does."""
    return 20e-6 + 1.5e-8 * size**0.75


def points(ranks: tuple[int, ...] = (2,)) -> list[Point]:
    return [Point("all_reduce", "nccl", n, size, bent(size)) for n in ranks for size in SIZES]


@functools.cache
def bent_curve() -> CostCurve:
    return fitted(points())


def fitted(made: list[Point]) -> CostCurve:
    (curve,), _ = fit_curves(made)
    return curve


def test_times_are_interpolated_between_neighbouring_sizes() -> None:
    knots = [(1.0, 2.0), (4.0, 8.0), (64.0, 16.0)]
    assert between(knots, 2.0) == pytest.approx(4.0)
    assert between(knots, 4.0) == 8.0
    # ``between`` takes the geometric mean of a straight line and a power law.
    straight, power = 8.0, 5 * (14 / 5) ** 0.5
    assert between([(1.0, 5.0), (4.0, 14.0)], 2.0) == pytest.approx(math.sqrt(straight * power))
    assert math.isnan(between(knots, 0.5))
    assert math.isnan(between(knots, 65.0))
    assert math.isnan(between(knots, 10.0))
    assert math.isnan(between([], 1.0))


def test_times_of_many_sizes_are_smoothed_quickly() -> None:
    x = np.arange(1.0, 40_001.0)
    begin = time.process_time()
    knots = knots_through(x, 1 + x, np.zeros(len(x)))
    assert time.process_time() - begin < 1
    assert knots[-1] == pytest.approx((40_000, 40_001))


def test_the_sizes_of_a_long_sweep_are_left_out_quickly() -> None:
    def swept(count: int) -> tuple[CostCurve, float]:
        sizes = [4096.0 * number for number in range(1, count + 1)]
        made = [Point("all_reduce", "nccl", 2, size, bent(size)) for size in sizes]
        begin_s = time.process_time()
        return fitted(made), time.process_time() - begin_s

    _, short_s = swept(1000)
    curve, long_s = swept(3000)
    assert long_s < 4 * short_s  # Quadratic time would be 9 times as long.
    assert curve.held_out_size is not None
    assert curve.held_out_size.points == 3000
    assert curve.held_out_size.mean < 0.001


def test_an_uncertain_time_is_smoothed_towards_its_neighbours() -> None:
    x = np.array([2.0**n for n in range(9)])
    y = 1 + x
    y[4] *= 1.3
    sure = dict(knots_through(x, y, np.zeros(9)))
    assert list(sure.values()) == pytest.approx(y.tolist())
    unsure = dict(knots_through(x, y, np.where(np.arange(9) == 4, 0.3, 0.0)))
    assert unsure[16.0] == pytest.approx(17, rel=0.05)
    assert unsure[32.0] == pytest.approx(33)


def test_a_curve_uses_knots_if_lines_fit_worse() -> None:
    curve = bent_curve()
    assert len(curve.knots) == len(SIZES)
    assert curve.held_out_size is not None
    assert curve.held_out_size.median < 0.025
    size = SIZES[7] * 1.4
    assert curve.time_s(size, 2) == pytest.approx(bent(size), rel=0.03)
    assert curve.outside([size], 2) == []


def test_a_curve_has_no_knots_if_lines_fit_or_for_several_numbers_of_ranks() -> None:
    straight = [Point("all_reduce", "gloo", 2, size, 20e-6 + 1e-9 * size) for size in SIZES]
    assert fitted(straight).knots == ()
    assert fitted(points(ranks=(2, 4))).knots == ()
    assert fitted(points()[::2]).knots == ()


def test_changing_the_link_changes_knots_and_lines_alike() -> None:
    curve = bent_curve()
    twice = curve.changed(lambda alpha: 2 * alpha, lambda beta: 2 * beta)
    for size in (3e3, 1e5, 3e7):
        assert twice.time_s(size, 2) == pytest.approx(2 * curve.time_s(size, 2))
    faster = curve.changed(lambda alpha: alpha, lambda beta: beta / 2)
    assert 0.5 < faster.time_s(5e8, 2) / curve.time_s(5e8, 2) < 0.7
    drawn = curve.replicate(3)
    assert drawn.time_s(1e6, 2) == pytest.approx(curve.time_s(1e6, 2), rel=0.3)
    assert len(drawn.knots) == len(curve.knots)


def test_a_profile_keeps_its_knots(tmp_path: Path) -> None:
    curve = bent_curve()
    made = MachineProfile({"same_host": LinkProfile({"all_reduce": curve})})
    save_profile(made, tmp_path / "profile.json")
    again = load_profile(tmp_path / "profile.json").links["same_host"].curves["all_reduce"]
    assert again.knots == curve.knots
    document = json.loads((tmp_path / "profile.json").read_text())
    del document["links"]["same_host"]["curves"]["all_reduce"]["knots"]
    (tmp_path / "older.json").write_text(json.dumps(document))
    older = load_profile(tmp_path / "older.json").links["same_host"].curves["all_reduce"]
    assert older.knots == ()
