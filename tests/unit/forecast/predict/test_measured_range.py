from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from commprof.errors import CommprofError
from commprof.forecast.costs.cost_model import OTHER_HOST, SAME_HOST
from commprof.forecast.costs.machine_profile import LinkProfile, MachineProfile
from commprof.forecast.fit.build import build_profile
from commprof.forecast.fit.points import Measurement, Point
from commprof.forecast.replay.recorded import RecordedJob, batches
from commprof.forecast.replay.replay import Replay
from commprof.forecast.scenario.scenario import Scenario
from commprof.forecast.scenario.schedule import Placement, StepBatch
from tests.support.builders.schedules import MB, curve, hook, profile, schedule
from tests.support.builders.sharded_job import fsdp_steps

GBIT = 1e9 / 8


def replay() -> Replay:
    links = {
        SAME_HOST: LinkProfile({"all_reduce": curve(world_sizes=(2,), ranks_per_core=1.0)}),
        OTHER_HOST: LinkProfile({"all_reduce": curve(world_sizes=(2, 8))}, GBIT, 20e-6),
    }
    hooks = {"fp16": hook(ranks=4, link=OTHER_HOST)}
    recorded = schedule(placement=Placement(2.0, 4.0, 1, 0.1), link=SAME_HOST)
    made = Replay(recorded, MachineProfile(links, hooks), (0.0, 0.001), batches=(4.0, 8.0))
    return dataclasses.replace(made)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"world_size": 2}, None),
        ({"world_size": 2, "ranks_per_host": 1}, None),
        ({"world_size": 4, "ranks_per_host": 4}, "4 ranks (measured: 2)"),
        ({"world_size": 4, "ranks_per_host": 2}, "within a host: 4 ranks (measured: 2)"),
        ({"world_size": 16, "ranks_per_host": 2, "algorithm": "hierarchical"}, None),
        (
            {"world_size": 32, "ranks_per_host": 2, "algorithm": "hierarchical"},
            "16 hosts (measured: 2, 8)",
        ),
        (
            {"world_size": 16, "ranks_per_host": 4, "algorithm": "hierarchical"},
            "within a host: 4 ranks (measured: 2)",
        ),
        ({"world_size": 4, "ranks_per_host": 1, "scaling": "strong"}, None),
        (
            {"world_size": 8, "ranks_per_host": 1, "scaling": "strong"},
            "2 samples per rank (measured: 4 to 8)",
        ),
        ({"world_size": 2, "cores_per_host": 1}, "2 ranks per core (measured: 1)"),
        (
            {"world_size": 2, "ranks_per_host": 1, "bandwidth_bytes_per_s": GBIT / 2},
            "0.5 Gbit/s (measured: 1)",
        ),
        ({"world_size": 2, "ranks_per_host": 1, "bandwidth_bytes_per_s": GBIT}, None),
        (
            {"world_size": 2, "ranks_per_host": 1, "latency_s": 1e-3},
            "latency 1e+03 µs (measured: 20)",
        ),
        (
            {"world_size": 2, "ranks_per_host": 1, "latency_s": 1e-6},
            "latency 1 µs (measured: 20)",
        ),
        ({"world_size": 2, "ranks_per_host": 1, "latency_s": 20e-6}, None),
        ({"world_size": 4, "ranks_per_host": 1, "hook": "fp16"}, None),
        (
            {"world_size": 4, "ranks_per_host": 4, "hook": "fp16"},
            "fp16 over links of class 'same host' (measured: 'other host')",
        ),
    ],
)
def test_settings_outside_the_measured_range_are_named(
    asked: dict[str, Any], reason: str | None
) -> None:
    found = replay().predict(Scenario(**asked)).outside
    many = [text for text in found if "waiting is a lower bound" not in text]
    assert many == [] if reason is None else reason in many


@pytest.mark.parametrize(("threads", "told"), [(1, []), (4, ["4 threads per core (measured: 2)"])])
def test_threads_that_share_a_core_are_reported_as_outside_the_measured_range(
    threads: int, told: list[str]
) -> None:
    placement = Placement(2.0, 4.0, threads, 0.9)
    made = dataclasses.replace(replay(), schedule=schedule(placement=placement, link=SAME_HOST))
    assert list(made.predict(Scenario(2, cores_per_host=2)).outside) == told


def test_predicting_more_threads_per_core_needs_measured_processor_time() -> None:
    placement = Placement(2.0, 8.0, 4, math.nan)
    made = Replay(schedule(placement=placement, link=SAME_HOST), profile(SAME_HOST))
    with pytest.raises(CommprofError, match="no recorded world size shows how much CPU"):
        made.predict(Scenario(4, ranks_per_host=4))


def test_the_range_of_batch_sizes_leaves_out_crowded_runs() -> None:
    small = schedule(batch=StepBatch(4.0, 10, "strong"))
    crowded = schedule(batch=StepBatch(1.0, 10, "strong"), placement=Placement(8.0, 4.0, 1, 1.0))
    runs = [RecordedJob("", each, ()) for each in (schedule(), small, crowded)]
    assert batches(runs, schedule()) == (4.0, 8.0)
    assert batches([], schedule()) == (0.0, math.inf)


def measured_on(*backends: str) -> Measurement:
    points = [
        Point(
            "all_reduce",
            backend,
            2,
            size,
            1e-5 + (number + 1) * 1e-9 * size,
            link=OTHER_HOST,
        )
        for number, backend in enumerate(backends)
        for size in (MB / 4, MB / 2, MB, 2 * MB)
    ]
    return Measurement(tuple(points), {})


def test_a_profile_has_one_backend_s_costs_and_names_those_left_out() -> None:
    made, left_out = build_profile([measured_on("gloo", "nccl")], [], ["bench"])
    assert made.links[OTHER_HOST].curves["all_reduce"].backend == "gloo"
    assert [reason[:20] for reason in left_out] == ["all_reduce on nccl ("]
    ran = [RecordedJob("", schedule(backend="nccl"), ())]
    made, left_out = build_profile([measured_on("gloo", "nccl")], ran, ["bench"])
    assert made.links[OTHER_HOST].curves["all_reduce"].backend == "nccl"
    assert [reason[:20] for reason in left_out] == ["all_reduce on gloo ("]


def measured_at(sizes: int, op: str, link: str = OTHER_HOST) -> Measurement:
    points = [
        Point(op, "gloo", 2, MB * 2.0**k, 1e-5 + 1e-9 * MB * 2.0**k, link=link)
        for k in range(sizes)
    ]
    return Measurement(tuple(points), {})


@pytest.mark.parametrize(
    ("measured", "operations"),
    [
        (measured_at(5, "all_gather"), {"all_gather": "microbench", "all_reduce": "run"}),
        (measured_at(2, "all_reduce"), {"all_reduce": "run"}),
        (measured_at(0, "all_reduce"), {"all_reduce": "run"}),
        (measured_at(5, "all_reduce"), {"all_reduce": "microbench"}),
    ],
)
def test_a_profile_takes_costs_from_a_run_if_no_file_has_them(
    measured: Measurement, operations: dict[str, str]
) -> None:
    made, _ = build_profile([measured], [RecordedJob("", schedule(), ())], ["bench", "RUN"])
    curves = made.links[OTHER_HOST].curves
    assert {op: curve.source for op, curve in curves.items()} == operations


def test_a_run_is_not_calibrated_if_a_file_has_its_operation() -> None:
    broken = schedule(bucket_bytes=np.zeros(0, dtype=np.int64))
    file = measured_at(5, "all_reduce")
    made, _ = build_profile([file], [RecordedJob("", broken, ())], ["bench", "RUN"])
    assert made.links[OTHER_HOST].curves["all_reduce"].source == "microbench"


def test_a_profile_takes_costs_from_sharded_steps_if_no_file_has_them() -> None:
    file = measured_at(5, "all_gather")
    made, _ = build_profile([file], [RecordedJob("", fsdp_steps(), ())], ["bench", "RUN"])
    curves = made.links[OTHER_HOST].curves
    found = {op: curve.source for op, curve in curves.items()}
    assert found == {"all_gather": "microbench", "reduce_scatter": "calls"}


def test_a_link_without_costs_is_not_in_the_profile() -> None:
    few = measured_at(2, "all_reduce", SAME_HOST)
    made, left_out = build_profile([few], [RecordedJob("", schedule(), ())], ["bench", "RUN"])
    assert list(made.links) == [OTHER_HOST]
    (reason,) = left_out
    wanted = "all_reduce on gloo (same host) was measured at 1e+06, 2e+06 bytes only; "
    assert reason.startswith(wanted)


def test_a_remark_names_costs_of_another_backend() -> None:
    text = "costs of collectives were measured on gloo, but the run used nccl"
    made = Replay(schedule(backend="nccl"), profile())
    assert text in made.predict(Scenario(2)).remarks
    assert Replay(schedule(), profile()).predict(Scenario(2)).remarks == ()
