from __future__ import annotations

import math
import random

import numpy as np
import pytest

from benchmarks.judging.simulate import Bucket, Link, simulate
from commprof.forecast.costs.algorithms import work
from commprof.forecast.fit.calibrate import _refined, calibrate
from commprof.forecast.replay.exchange import exchange, replay_ddp
from tests.support.builders.schedules import BETA, MB, curve, schedule


def test_buckets_follow_each_other_on_the_link() -> None:
    ready = np.array([[0.010, 0.015, 0.100]])
    end = exchange(ready, np.array([0.020, 0.010, 0.010]), np.zeros(3), workers=2)
    assert end[0] == pytest.approx([0.030, 0.040, 0.110])


def test_other_buckets_use_the_link_during_a_bucket_s_latency() -> None:
    ready = np.zeros((1, 3))
    wire, latency = np.full(3, 0.001), np.full(3, 0.010)
    # The second bucket is sent during the first bucket's latency; the third waits for a worker.
    assert exchange(ready, wire, latency, 2)[0] == pytest.approx([0.011, 0.012, 0.022])
    assert exchange(ready, wire, latency, 1)[0] == pytest.approx([0.011, 0.022, 0.033])


def test_ddp_copies_a_bucket_before_it_waits_for_the_next() -> None:
    ready = np.array([[0.029, 0.049], [0.004, 0.005]])
    wire, copy = np.full(2, 0.001), np.array([0.004, 0.001])
    done, waited = replay_ddp(ready, np.array([0.020, 0.020]), wire, np.zeros(2), copy, workers=2)
    # In the first step DDP waits 10 ms, copies 4 ms, waits 16 ms and copies 1 ms.
    assert done == pytest.approx([0.051, 0.025])
    assert waited == pytest.approx([0.026, 0.0])


@pytest.mark.parametrize("seed", range(20))
def test_the_last_bucket_ends_as_in_the_simulation_of_segments(seed: int) -> None:
    draw = random.Random(seed)
    ranks = draw.choice((2, 3, 4, 8))
    count = draw.randint(2, 8)
    sizes = [draw.uniform(0.5, 6) * MB for _ in range(count)]
    ready = np.cumsum([draw.uniform(0, 0.040) for _ in range(count)])
    buckets = [Bucket(float(r), s) for r, s in zip(ready, sizes, strict=True)]
    exact = simulate(buckets, float(ready[-1]), ranks, Link(1 / BETA))
    fast = curve()
    wire = np.array([fast.transfer_s(size, ranks) for size in sizes])
    end = exchange(ready[None, :], wire, np.zeros(count), workers=2)
    assert end.max() == pytest.approx(max(exact.end_s), rel=0.01)


def test_calibration_recovers_the_known_link_cost() -> None:
    random_ = np.random.default_rng(0)
    alpha, beta = 0.4e-3, 2e-8
    ready = np.cumsum(random_.uniform(0.002, 0.030, (12, 5)), axis=1)
    sizes = np.array([20_000, 3 * MB, 40_000, MB, 60_000])
    done = work("all_reduce", 4)
    x = done.sent * sizes / done.steps
    latency = done.steps * np.maximum(0, alpha - beta * x / 2)
    end = exchange(ready, done.steps * beta * x, latency, 2)
    made = schedule(
        bytes_=tuple(sizes.tolist()),
        ready_ms=(0.0,) * 5,
        ranks=4,
        steps=12,
    )
    found = calibrate(
        [type(made)(**{**made.__dict__, "ready_s": np.stack([ready] * 4, axis=1), "end_s": end})]
    )
    assert found.pieces[0].alpha_s == pytest.approx(alpha, rel=0.05)
    assert found.pieces[1].beta_s_per_byte == pytest.approx(beta, rel=0.01)
    assert found.residual < 0.01
    assert found.source == "run"


def test_the_search_of_costs_goes_on_while_only_the_rate_gets_better() -> None:
    def loss(alpha_s: float, beta_s_per_byte: float) -> float:
        return abs(math.log(alpha_s / 1e-4)) + abs(math.log(beta_s_per_byte / 4e-10))

    found = _refined(loss, (1e-4, 1e-10), factor=1.2, until=1.01)
    assert found == pytest.approx((1e-4, 4e-10), rel=0.02)
