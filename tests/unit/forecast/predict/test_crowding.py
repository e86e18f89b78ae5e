from __future__ import annotations

import dataclasses
import math
import time
from types import SimpleNamespace

import numpy as np
import pytest

from commprof.forecast.scenario.scenario import Scenario
from commprof.forecast.sharded.changes import change
from commprof.forecast.sharded.crowding import costed, crowding, stretch
from commprof.forecast.sharded.steps import ShardedSteps, _processor_time, read_sharded
from tests.support.builders.sharded_job import fsdp_ranks, fsdp_steps, replay
from tests.support.builders.traces import MS, Rank, world_run


@pytest.mark.parametrize(
    ("busy", "lacked", "own"),
    [
        # In the first three cases, the other rank uses the core for 66, 49.5 and 26.4 of 96 ms.
        (1.0, 1.0, 1 + 66 / 96),
        (0.75, 1.0, 1 + 0.75 * 49.5 / 96),
        (0.4, 1.0, 1 + 0.4 * 26.4 / 96),
        (math.nan, math.nan, 1.0),
        # In its 66 ms of own work, the rank has the core for 22 ms and other processes for 44 ms.
        # 30 of the 96 ms remain.
        (1.0, 3.0, (3 + 22 / (22 + 30)) / 3),
    ],
)
def test_ranks_that_share_cores_take_longer_for_their_own_work(
    busy: float, lacked: float, own: float
) -> None:
    """Two ranks share one core, and each rank has 66 ms of own work in 96 ms."""
    steps = fsdp_steps()
    placement = dataclasses.replace(steps.placement, busy=busy)
    steps = dataclasses.replace(steps, placement=placement, lacked=lacked)
    made = replay(steps)
    found = made.predict(Scenario(2, cores_per_host=0.5))
    assert found.step_s.value * 1e3 == pytest.approx(30 + own * 66)
    words = "as long" if math.isnan(busy) else f"{own:.3g} times as long"
    end = f"own work is assumed to take {words} as in the recorded run"
    assert any(text.endswith(end) for text in found.outside)


@pytest.mark.parametrize(
    ("sharing", "elsewhere", "times"),
    [
        (0.5, 10.0, 1.0),
        (1, 10.0, 1.0),
        (1.5, 10.0, 1.25),
        (2, 10.0, 1.5),
        # With 2 ranks, 15 of 25 ms are at the core, so a third rank makes work 1 + 2 * 15 / 25
        # times as long.
        (3, 10.0, 2.2),
        (4, 0.0, 4.0),
        (4, 1e9, 1.0),
    ],
)
def test_time_at_a_shared_core_follows_mean_value_analysis(
    sharing: float, elsewhere: float, times: float
) -> None:
    assert stretch(sharing, 10.0, elsewhere) == pytest.approx(times)
    assert stretch(sharing, 0.0, elsewhere) == 1.0


def placed(**changes: float) -> ShardedSteps:
    steps = fsdp_steps()
    cores: dict[str, float] = {"busy": 0.5, "ranks_per_host": 2, "cores_per_host": 2, **changes}
    placement = dataclasses.replace(steps.placement, **cores)
    return dataclasses.replace(steps, helpers_ns=6 * MS, lacked=1.0, placement=placement)


@pytest.mark.parametrize(("ranks", "exchange_ms"), [(2, 6.0), (8, 21.0)])
def test_cpu_time_of_exchanges_competes_for_shared_cores(ranks: int, exchange_ms: float) -> None:
    """The helpers of 8 ranks send 7 times the messages and 7 / 4 of the bytes."""
    steps = placed()
    shared = dataclasses.replace(steps.placement, ranks_per_host=4)
    found = crowding(steps, change(steps, Scenario(ranks)), shared, 96 * MS, 66 * MS)
    wanted = 33 + exchange_ms
    assert found.longer_ns / MS == pytest.approx(wanted * wanted / 96)


def test_a_recording_on_shared_cores_is_not_predicted_faster_with_fewer_cores() -> None:
    steps = dataclasses.replace(placed(busy=1.0, ranks_per_host=4, cores_per_host=1), lacked=4.0)
    steps = dataclasses.replace(steps, helpers_ns=0.0)
    changed, own_ns = change(steps, Scenario(2)), float(np.median(steps.own_ns[:, :, -1]))

    def times_as_long(cores: float) -> float:
        at = dataclasses.replace(steps.placement, cores_per_host=cores)
        found = crowding(steps, changed, at, own_ns, own_ns)
        return found.own + found.longer_ns / own_ns

    factors = [times_as_long(cores) for cores in (4, 2, 1, 0.99, 0.5)]
    assert factors == pytest.approx([0.25, 0.5, 1.0, 1.01, 2.0], rel=0.01)


def test_the_cost_of_an_exchange_is_not_lengthened_twice_by_shared_cores() -> None:
    steps = placed()
    shared = dataclasses.replace(steps.placement, ranks_per_host=4, cores_per_host=1)
    assert costed(steps, shared).ranks_per_core == 1
    assert costed(dataclasses.replace(steps, helpers_ns=0.0), shared) == shared


def test_the_processor_share_is_cpu_time_divided_by_own_work_time() -> None:
    ranks = fsdp_ranks()
    assert math.isnan(read_sharded(world_run(ranks)).placement.busy)
    for rank in ranks:
        for step in range(8):
            at = (96 * step + 92) * MS
            rank.finalize(at - MS, at, cpu=step * 33 * MS, graph_task=step)
    assert read_sharded(world_run(ranks)).placement.busy == pytest.approx(0.5)
    for rank in ranks:
        for step in range(8):
            rank.no_core((96 * step + 93) * MS, (96 * step + 95) * MS, 11 * MS, 7 * MS)
    found = read_sharded(world_run(ranks))
    assert found.helpers_ns == 7 * MS
    assert found.placement.busy == pytest.approx(44 / 66)
    assert found.lacked == pytest.approx(44 / 33)


def test_processor_times_of_a_long_run_are_read_quickly() -> None:
    rank = Rank()
    for step in range(30_000):
        rank.finalize(10 * step * MS, (10 * step + 1) * MS, cpu=2 * step * MS)
        rank.no_core((10 * step + 2) * MS, (10 * step + 3) * MS, MS)
    seen = SimpleNamespace(traces=[rank.trace()])
    begin = time.process_time()
    share, lacked = _processor_time(seen)  # type: ignore[arg-type]
    assert time.process_time() - begin < 2
    assert (share, lacked) == pytest.approx((0.3, 1.5))
