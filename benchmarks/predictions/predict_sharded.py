"""Measures the errors of predicted steps of FSDP2, HSDP and DDP, on settings that are then run.

    PYTHONPATH=. python benchmarks/predictions/predict_sharded.py --results points.jsonl
        --minutes 10

One setting is recorded (2 ranks, 160 Mbit/s, fp32), and a model is fitted to the recording. The
model predicts other settings, called points: other numbers of ranks, rates, types, wrapped blocks,
accumulation and HSDP. Every point is then run, and its measured median step is compared with the
prediction. The measured step is also compared with two answers that need no model: the recorded
step, and perfect overlap. The ranks run on network namespaces with a rate limit, so root is needed.
All namespaces share the cores of this machine, and the prediction includes that. A point is run
several times, and the run with the shortest median step counts, because other jobs may slow the
machine down.

There are three studies. `timed` runs the workload of this name, which sleeps, under FSDP2 and HSDP.
`transformer` runs the transformer, which computes, under FSDP2 and HSDP. `ddp` runs the transformer
under DDP, and varies only ranks and rates. In points with bf16, the transformer reduces gradients
in bf16, but still computes in fp32: the recording does not show how long compute in bf16 takes.

With --results, points in the file are neither run nor predicted again. The exit code is 1 if a
demand is not met.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from benchmarks.judging.demands import Demand, at_most, judged, of_all
from benchmarks.judging.results_file import Lines, read_rows
from benchmarks.predictions.predict_error import BURST_KIB, CONGESTION, QUEUE
from benchmarks.ranks import forked_ranks
from commprof.errors import CommprofError
from commprof.forecast.fit.build import build_profile
from commprof.forecast.replay.recorded import RecordedJob, read_recorded
from commprof.forecast.replay.replay import Replay
from commprof.forecast.scenario.scenario import Scenario
from commprof.forecast.scenario.schedule import Schedule
from commprof.forecast.sharded.replay import ShardedReplay
from commprof.forecast.sharded.steps import ShardedSteps
from commprof.launch.job import Job
from tests.support.machines import netns

STEPS = 12
#: Number of runs of the recorded setting, and of each point.
BASE_RUNS, RUNS = 3, 2
#: Backward time (ms) and parameters (MB) of each layer, in forward order.
BACKWARD_MS = (40, 60, 30, 50, 45)
PARAMETER_MB = (0.4, 0.9, 0.6, 1.2, 0.3)
TIMED = (
    f"timed:layers={len(BACKWARD_MS)},data_ms=10,forward_ms=20,optimizer_ms=20,"
    f"backward_ms={'/'.join(map(str, BACKWARD_MS))},"
    f"gradient_mb={'/'.join(map(str, PARAMETER_MB))}"
)
TRANSFORMER = "transformer:vocab=512,d_model=128,feedforward=512,layers=6,sequence=64"
RATES_MBIT = (80, 160, 320)
#: Rates that were not used while commprof's predictions were developed.
TRANSFORMER_RATES_MBIT = (60, 120, 240)
#: Eight ranks also run on a slower link: on the fastest link, they wait for the machine's cores.
SLOWER_MBIT_OF_8 = {"timed": 40, "transformer": 30}
#: Number of ranks, and number of ranks that share one copy of the model. If these numbers differ,
#: the strategy is HSDP.
SHAPES = ((2, 2), (4, 4), (4, 2), (8, 8), (8, 4))
TRANSFORMER_SHAPES = SHAPES[:4]
DTYPES = ("fp32", "bf16")
DDP, DDP_RANKS = "ddp", (2, 4, 8)
#: Number of blocks that are wrapped together, and the shapes of these points. Their link is the
#: fastest, because latency counts most there.
WRAPPED, WRAPPED_SHAPES = 2, ((2, 2), (4, 4), (4, 2))
#: Number of backward passes per step, and the shapes of these points.
ACCUMULATED, ACCUMULATED_SHAPES = 3, ((2, 2), (4, 2))
#: Largest allowed mean error and worst error of a study's points.
MEAN, WORST = 0.05, 0.15
#: Limit for points whose recorded step and perfect overlap differ by at least ``APART`` of the
#: step: the model's mean error, divided by the smaller mean error of these two answers.
OF_TRIVIAL, APART = 1 / 3, 0.2


@dataclass(frozen=True)
class Point:
    """A setting that is predicted, and then run."""

    ranks: int
    #: Number of ranks that share one copy of the model; 1 under DDP.
    shard_ranks: int
    rate_mbit: int
    dtype: str = "fp32"
    workload: str = "timed"
    #: Number of neighbouring blocks that one ``fully_shard`` wraps.
    wrap_blocks: int = 1
    #: Number of backward passes per step.
    accumulate: int = 1

    @property
    def study(self) -> str:
        """Name of the study that the point belongs to."""
        return DDP if self.shard_ranks == 1 else self.workload

    @property
    def strategy(self) -> str:
        """Value of ``--strategy``."""
        if self.shard_ranks == 1:
            return DDP
        groups = "" if self.shard_ranks == self.ranks else f"shard={self.shard_ranks},"
        name = "hsdp" if groups else "fsdp"
        return f"{name}:{groups}wrap_blocks={self.wrap_blocks}"

    @property
    def gather_dtype(self) -> str:
        """Type of the gathered parameters, in which the model also computes."""
        return self.dtype if self.workload == "timed" else "fp32"

    @property
    def scenario(self) -> Scenario:
        """The point as a scenario in which all hosts share the cores of this machine."""
        placed = Scenario(
            self.ranks,
            bandwidth_bytes_per_s=self.rate_mbit * 1e6 / 8,
            ranks_per_host=1,
            cores_per_host=len(os.sched_getaffinity(0)) / self.ranks,
        )
        if self.shard_ranks == 1:
            return placed
        return replace(
            placed,
            gather_dtype=self.gather_dtype,
            reduce_dtype=self.dtype,
            shard_ranks=self.shard_ranks,
            wrap_blocks=self.wrap_blocks,
            accumulate=self.accumulate,
        )


BASE = Point(2, 2, 160)
TRANSFORMER_BASE = Point(2, 2, 160, workload="transformer")
DDP_BASE = Point(2, 1, 160, workload="transformer")


def points(seed: int = 0) -> list[Point]:
    """Returns the points of the `timed` study, in random order."""
    return _shuffled("timed", SHAPES, RATES_MBIT, seed)


def transformer_points(seed: int = 0) -> list[Point]:
    """Returns the points of the `transformer` study, in random order."""
    return _shuffled("transformer", TRANSFORMER_SHAPES, TRANSFORMER_RATES_MBIT, seed)


def ddp_points(seed: int = 0) -> list[Point]:
    """Returns the points of the `ddp` study, in random order."""
    rates = itertools.product(DDP_RANKS, TRANSFORMER_RATES_MBIT)
    found = [Point(ranks, 1, rate, workload="transformer") for ranks, rate in rates]
    random.Random(seed).shuffle(found)
    return found


#: Points of each study, and the setting that is recorded.
STUDIES = {
    "timed": (points, BASE),
    "transformer": (transformer_points, TRANSFORMER_BASE),
    DDP: (ddp_points, DDP_BASE),
}


def _shuffled(
    workload: str,
    shapes: Sequence[tuple[int, int]],
    rates: Sequence[int],
    seed: int,
) -> list[Point]:
    found = [
        Point(*shape, rate, dtype, workload)
        for shape in shapes
        for rate in (*rates, *[SLOWER_MBIT_OF_8[workload]] * (shape[0] == 8))
        for dtype in DTYPES
    ]
    found = [point for point in found if point not in (BASE, TRANSFORMER_BASE)]
    found += [Point(*shape, rates[-1], "fp32", workload, WRAPPED) for shape in WRAPPED_SHAPES]
    for shape in ACCUMULATED_SHAPES:
        found.append(Point(*shape, rates[1], workload=workload, accumulate=ACCUMULATED))
    random.Random(seed).shuffle(found)
    return found


def record(point: Point, directory: Path) -> RecordedJob:
    """Runs a setting, and returns its recording.

    A run in which a rank fails is repeated once.
    """
    workload = TIMED if point.workload == "timed" else TRANSFORMER
    batch = None if point.workload == "timed" else 4
    job = Job(
        workload,
        point.ranks,
        directory,
        STEPS,
        batch_size=batch,
        hook=False,
        strategy=point.strategy,
        accumulate=point.accumulate,
    )
    for attempt in range(2):
        run = directory / f"{time.monotonic_ns()}"
        try:
            rate, burst = f"{point.rate_mbit}mbit", f"{BURST_KIB}kb"
            with netns.Hosts(point.ranks, rate, burst, QUEUE, CONGESTION) as hosts:
                types = {"gather_dtype": point.gather_dtype, "reduce_dtype": point.dtype}
                world = forked_ranks.run(job, run, hosts.names, hosts.address(0), **types)
            found, refused = read_recorded(world)
            if refused:
                raise CommprofError("; ".join(refused))
            return found[0]
        except (CommprofError, RuntimeError) as error:
            print(f"{point}, try {attempt}: {error}", file=sys.stderr, flush=True)
    raise SystemExit(f"{point} failed twice")


def fitted(recorded: RecordedJob, rate_mbit: int) -> Replay | ShardedReplay:
    """Fits a model to a recording."""
    profile, _ = build_profile([], [recorded], ["the run"], rate_mbit * 1e6 / 8, 0.0)
    if isinstance(recorded.schedule, ShardedSteps):
        return ShardedReplay(recorded.schedule, profile)
    assert isinstance(recorded.schedule, Schedule)
    return Replay(recorded.schedule, profile)


def step_s(recorded: RecordedJob) -> float:
    """Returns the median step of a recording."""
    return float(np.median(recorded.schedule.period_s))


def point_of(row: Mapping[str, Any]) -> Point:
    """Returns the point of a row; fields that the row lacks have their defaults."""
    known = {each.name for each in fields(Point)}
    return Point(**{name: value for name, value in row.items() if name in known})


def row_of(point: Point, replay: Replay | ShardedReplay, measured_s: float) -> dict[str, Any]:
    """Returns a row: times in ms, and errors as fractions of the measured step."""
    found = replay.predict(point.scenario)
    values = {
        "predicted": found.step_s.value,
        "as_is": point.accumulate * float(np.median(replay.schedule.period_s)),
        "perfect_overlap": found.perfect_overlap_s,
    }
    return {
        **asdict(point),
        "measured_ms": measured_s * 1e3,
        **{f"{name}_ms": value * 1e3 for name, value in values.items()},
        **{f"{name}_error": value / measured_s - 1 for name, value in values.items()},
    }


def least_disturbed(point: Point, directory: Path, runs: int) -> RecordedJob:
    """Runs a point ``runs`` times; returns the run with the shortest median step."""
    return min((record(point, directory) for _ in range(runs)), key=step_s)


def measured_rows(
    directory: Path, base: Point, left: Sequence[Point], end: float
) -> Iterator[dict[str, Any]]:
    """Yields a row per point, until the time is up."""
    replay = fitted(least_disturbed(base, directory, BASE_RUNS), base.rate_mbit)
    for point in left:
        if time.monotonic() > end:
            return
        yield row_of(point, replay, step_s(least_disturbed(point, directory, RUNS)))


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Returns the mean and the worst absolute error of the model and of both trivial answers."""
    found = {}
    for name in ("predicted", "as_is", "perfect_overlap"):
        values = np.abs([row[f"{name}_error"] for row in rows])
        found[name] = float(values.mean()), float(values.max())
    return found


def demands(rows: Sequence[dict[str, Any]], study: str) -> list[Demand]:
    """Checks the demands on the model's errors at all points of one study."""
    mean, worst = (100 * value for value in summary(rows)["predicted"])
    apart = [
        row
        for row in rows
        if abs(row["as_is_ms"] - row["perfect_overlap_ms"]) >= APART * row["measured_ms"]
    ]
    count = len(STUDIES[study][0]())
    asked = [
        of_all(f"{study}, points measured", len(rows), len(rows), count),
        at_most(f"{study}, error of the step: mean", mean, 100 * MEAN, " %"),
        at_most(f"{study}, error of the step: worst", worst, 100 * WORST, " %"),
    ]
    if apart:
        means = {name: 100 * value for name, (value, _) in summary(apart).items()}
        limit = OF_TRIVIAL * min(means["as_is"], means["perfect_overlap"])
        what = (
            f"{study}, {len(apart)} points where recorded step and perfect overlap differ: "
            "mean error"
        )
        asked.append(at_most(what, means["predicted"], round(limit, 2), " %"))
    return asked


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, help="points in this file are not run again")
    parser.add_argument("--minutes", type=float, default=10, help="start no point after MINUTES")
    parser.add_argument("--study", choices=STUDIES, default="timed")
    args = parser.parse_args()
    if reason := netns.unavailable():
        raise SystemExit(f"no network namespaces here: {reason}")
    rows = [row for row in read_rows(args.results) if point_of(row).study == args.study]
    done = set(map(point_of, rows))
    kept, end = Lines(args.results), time.monotonic() + 60 * args.minutes
    wanted, base = STUDIES[args.study]
    left = [point for point in wanted() if point not in done] if args.minutes else []
    with tempfile.TemporaryDirectory(prefix="commprof-sharded-") as name:
        for row in measured_rows(Path(name), base, left, end) if left else ():
            rows.append(row)
            kept.append(row)
            print(json.dumps(row), flush=True)
    if not rows:
        raise SystemExit("no point was run; give more --minutes")
    print(tabulate(rows, headers="keys", floatfmt=".3g"))
    for what, (mean, worst) in summary(rows).items():
        print(f"{what}: mean error {mean:.2%}, worst error {worst:.2%}, {len(rows)} points")
    return judged(demands(rows, args.study))


if __name__ == "__main__":
    sys.exit(main())
