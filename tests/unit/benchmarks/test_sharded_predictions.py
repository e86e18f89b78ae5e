from __future__ import annotations

import pytest

from benchmarks.predictions.predict_sharded import (
    BASE,
    Point,
    ddp_points,
    demands,
    points,
    summary,
    transformer_points,
)


def row(measured: float, predicted: float, as_is: float, perfect: float) -> dict[str, float]:
    found = {"predicted": predicted, "as_is": as_is, "perfect_overlap": perfect}
    errors = {f"{name}_error": value / measured - 1 for name, value in found.items()}
    return {"measured_ms": measured, **{f"{k}_ms": v for k, v in found.items()}, **errors}


def test_points_are_distinct_and_exclude_the_recorded_setting() -> None:
    found = points()
    assert len(found) == len(set(found)) == 38
    assert len(set(transformer_points())) == 31
    assert BASE not in found
    assert found == points()


def test_the_scenario_of_a_point_has_its_settings() -> None:
    scenario = Point(4, 2, 80, "bf16").scenario
    assert (scenario.world_size, scenario.shard_ranks) == (4, 2)
    assert scenario.bandwidth_bytes_per_s == 10e6
    assert (scenario.gather_dtype, scenario.reduce_dtype) == ("bf16", "bf16")
    computing = Point(4, 2, 80, "bf16", "transformer").scenario
    assert (computing.gather_dtype, computing.reduce_dtype) == ("fp32", "bf16")


def test_a_point_is_run_with_the_strategy_that_is_predicted() -> None:
    wrapped = Point(4, 2, 80, wrap_blocks=2)
    assert (wrapped.scenario.wrap_blocks, wrapped.strategy) == (2, "hsdp:shard=2,wrap_blocks=2")
    assert Point(4, 4, 80).strategy == "fsdp:wrap_blocks=1"
    (ddp,) = {(point.strategy, point.study, point.scenario.shard_ranks) for point in ddp_points()}
    assert ddp == ("ddp", "ddp", None)


def test_only_points_with_clearly_differing_bounds_are_compared_with_them() -> None:
    rows = [row(100, 104, 60, 90), row(100, 98, 99, 100)]
    assert summary(rows)["predicted"] == pytest.approx((0.03, 0.04))
    measured, mean, worst, against = demands(rows, "timed")
    assert not measured.met
    assert mean.met
    assert worst.met
    # The error may be at most a third of the error of the better bound. For the first point, the
    # bound of perfect overlap is 10 % off.
    assert against.asked == "at most 3.33 %"
    assert not against.met
    assert len(demands(rows[1:], "timed")) == 3
