"""A JSON result in which every field has a value."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from commprof.analysis.card import CardLink, card
from commprof.analysis.checks.figure_checks import CrossCheck
from commprof.analysis.checks.losses import LossAgreement
from commprof.analysis.collectives.bucket_sizes import SmallCalls
from commprof.analysis.collectives.host_links import HostLinks
from commprof.analysis.collectives.in_flight import TimeInFlight
from commprof.analysis.collectives.kinds import SteplessCollectives
from commprof.analysis.collectives.sharding import FORWARD, ShardedPart, Sharding
from commprof.analysis.cost import Price, cost
from commprof.analysis.late.attempts import Attempt
from commprof.analysis.late.costs import WaitCost, WithoutCore
from commprof.analysis.late.incidents import Incidents
from commprof.analysis.late.stragglers import LateRank
from commprof.analysis.replay.gains import Gain, Gains
from commprof.analysis.step.devices import DeviceTelemetry, KernelTimes
from commprof.analysis.verdict import verdict
from commprof.analysis.world import WorldResult
from commprof.report.export.as_json import render
from commprof.stats.intervals import Interval
from tests.support.builders.details import detail
from tests.support.builders.results import (
    collective,
    compression,
    incidents,
    run_result,
    summary,
    world,
)


def with_devices(result: WorldResult) -> WorldResult:
    """The same, with what a driver said of each rank's GPU, and its kernels."""
    limited = {"power": 0.25, "temperature": 0.0, "hardware": 0.0}
    device = DeviceTelemetry(20, 97.0, 1800.0, 1200.0, 350.0, 40e9, limited)
    kernels = KernelTimes(5.0, 7.0, 10.0, 2.0, 4.0, 1.0, 0.0)
    ranks = tuple(
        dataclasses.replace(r, device=device, kernels=kernels, device_peak_bytes=30e9)
        for r in result.ranks
    )
    return dataclasses.replace(result, ranks=ranks, device_clock_error_us=2.0)


def changed() -> Incidents:
    """A change of level that ended."""
    found = incidents()
    ((time, change),) = found.anomalies
    return dataclasses.replace(
        found, anomalies=((time, dataclasses.replace(change, last_step=150)),)
    )


def full_run() -> dict[str, Any]:
    """A document in which every field has a value."""
    errors = {"arrival_clock_error_p95_us": 40.0, "arrival_clock_error_us": 90.0}
    late = LateRank(1, 2e6, 0.8, 0.001, 8, 10, 0.02, "data", 0.9, 1.5)
    gain = Gain("phase", 1, "forward", "", 90.0, Interval(0.1, 0.08, 0.12))
    check_ = CrossCheck("phases", "a sum", "ms", 100.0, 101.0, False, "a note")
    same: dict[str, Any] = {
        "late_rank": late,
        "wait_costs": (WaitCost(1, "data", 2.0, 0.8),),
        "without_core": WithoutCore(1, "backward", 18.0, 16.0),
        "gains": Gains(100.0, 10, (gain,), 0.9, 0.95, 0.8),
        "sharding": Sharding((ShardedPart(FORWARD, 4.0, 5.5, 2, 2.5, 0.0),), 4),
        "stalled_steps": ((7, 25_095.0),),
        "step_losses": (2.5,),
        "weights_differ": (1,),
        "times_in_flight": (TimeInFlight("all_reduce", 12.0),),
        "host_links": HostLinks(
            2, ("eth0",), 6e6, 0.8, 0.25, 240e6, 242e6, "a note", 0.046, ("eth1",)
        ),
        "cross_checks": (check_,),
        "collectives": (collective(callers=(("train.py:7 train", 20),)),),
        "compression": (
            compression(
                relative_error=0.1, cosine=0.9, residual_ratio=0.5, zeroed=0.1, saturated=0.0
            ),
        ),
    }
    worlds = (
        with_devices(world(1, missing_ranks=(0,), problems=("a",), **same)),
        with_devices(world(2, missing_ranks=(1,), problems=("b",), **same)),
    )
    # As dear as each other.
    details = [detail(n, step=100 + np.arange(20), epoch_samples=5000) for n in (1, 2)]
    judged = verdict(run_result(*worlds), details)
    said = card(run_result(*worlds), details, judged, Path("RUN"))
    assert said is not None
    small = dataclasses.replace(
        said,
        small_calls=SmallCalls(160.0, 12_500.0, 0.8),
        link=CardLink(("eth0",), 6e6, 0.8, ("eth1",)),
    )
    document: dict[str, Any] = json.loads(
        render(
            run_result(
                *worlds,
                failures=((4, "rank 1 failed"),),
                remarks=("a remark",),
                summaries=(summary(2, problems=("c",), cross_checks=(check_,), **errors),),
                loss_agreement=LossAgreement((1, 2), 10, 16, 1e-6, 2, 7, 1e-4),
                incidents=(changed(),),
                stepless=(SteplessCollectives(8, worlds[0].collectives),),
                attempts=(Attempt(4, 0, 4, 12, 3.5, 1.5, "rank 1: its process was killed"),),
            ),
            cost=cost(worlds, details, Price(3.6, "rank")),
            verdict=judged,
            card=small,
        )
    )
    return document
