"""Measures the errors of predicted steps of DDP, on settings that are then run.

    PYTHONPATH=. python benchmarks/predictions/predict_error.py --results points.jsonl --minutes 10

A model is fitted to runs of the `timed` workload at 2 ranks and one bandwidth. It predicts steps at
4 and 8 ranks, with other bandwidths, bucket caps and hooks. Each predicted setting is a point.
Every point is then run, and its measured median step is compared with the prediction and with two
bounds, "no overlap" and "perfect overlap". The ranks run on network namespaces with a rate limit,
so root is needed. A run is repeated, up to three times, if the hypervisor took more than
`MOST_STOLEN` of the processor time. With --results, points in the file are not run again.

`--transformer` studies the transformer workload instead, on this host, with bucket caps and hooks
at 2 ranks. Both studies may share a file. The exit code is 1 if a demand is not met.
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
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from benchmarks.judging.demands import Demand, at_most, judged, of_all
from benchmarks.judging.medians import MOST_STOLEN, Stolen
from benchmarks.judging.results_file import Lines, read_rows
from benchmarks.ranks import forked_ranks
from commprof.errors import CommprofError
from commprof.forecast.fit.build import build_profile
from commprof.forecast.replay.recorded import RecordedJob, read_recorded
from commprof.forecast.replay.replay import Replay
from commprof.forecast.scenario.scenario import Scenario
from commprof.launch.job import Job
from tests.support.machines import netns

MIB = 1 << 20
STEPS, TRANSFORMER_STEPS = 14, 12
BURST_KIB = 64
#: Length of a link's queue. The queue is long, because a lost packet would cost TCP a large part of
#: a step.
QUEUE = "2s"
#: CUBIC, Linux's default, ends slow start when the delay rises (HyStart), as it does on a link that
#: ranks share. The window then stays too small. In some steps this cost 90 of 350 ms (fp16, 8
#: ranks, 80 Mbit/s). The model does not include this. Reno fills the link.
CONGESTION = "reno"
#: Backward time (ms) and gradient size (MB) of each layer, in the order of backward.
BACKWARD_MS = (20, 12, 25, 8, 16, 30, 10, 14, 22, 18)
GRADIENT_MB = (0.4, 0.2, 0.6, 0.1, 0.3, 0.5, 0.15, 0.25, 0.35, 0.2)
#: Bucket caps in MiB. ``FINEST`` gives a bucket per layer, and ``ONE`` a single bucket.
FINEST, ONE = 0.01, 100.0
#: Factor on the size of gradients in a run with small buckets, which shows the latency.
SMALL = 0.01
CAPS_MIB = (FINEST, 0.5, 1.0, ONE)
TRANSFORMER_CAPS_MIB = (0.25, 2.0, 5.0, ONE)
RATES_MBIT = (80, 160, 320)
FITTED_MBIT, FITTED_RANKS = 160, 2
HOOKS = ("", "fp16", "topk:ratio=0.05")
RANKS = (4, 8)
#: Largest allowed mean error and worst error. The transformer's worst error has no limit, because
#: its steps vary by more than this from run to run.
MEAN, WORST = 0.05, 0.15
ERRORS = {
    "model": "error",
    "no overlap": "no_overlap_error",
    "perfect overlap": "perfect_overlap_error",
}


@dataclass(frozen=True)
class Point:
    """A setting that is predicted, and then run."""

    ranks: int
    rate_mbit: int
    cap_mib: float
    hook: str

    def workload(self, scale: float) -> str:
        """Returns the workload, with the sizes of its gradients multiplied by ``scale``."""
        sizes = [size * scale for size in GRADIENT_MB]
        backward, gradient = (
            "/".join(f"{x:g}" for x in values[::-1]) for values in (BACKWARD_MS, sizes)
        )
        return (
            f"timed:layers={len(BACKWARD_MS)},data_ms=8,forward_ms=2,backward_ms={backward},"
            f"gradient_mb={gradient},bucket_cap_mb={self.cap_mib:g}"
        )

    @property
    def scenario(self) -> Scenario:
        return Scenario(
            self.ranks,
            bandwidth_bytes_per_s=self.rate_mbit * 1e6 / 8,
            bucket_cap_bytes=self.cap_mib * MIB,
            hook=self.hook,
            ranks_per_host=1,
            cores_per_host=_cores() / self.ranks,
        )


#: Largest number of runs of a point that the hypervisor disturbs.
_TRIES = 4


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def points(seed: int = 0) -> list[Point]:
    """Returns all points in random order."""
    grid = itertools.product(RANKS, RATES_MBIT, CAPS_MIB, HOOKS)
    found = [Point(*values) for values in grid]
    random.Random(seed).shuffle(found)
    return found


def record(point: Point, directory: Path, scale: float = 1.0) -> tuple[list[RecordedJob], int]:
    """Runs a point; returns its recording and the number of lost packets.

    A run in which a rank fails is repeated once.
    """
    name = f"{point.ranks}_{point.rate_mbit}_{point.cap_mib:g}_{point.hook or 'none'}_{scale:g}"
    workload = point.workload(scale)
    job = Job(workload, point.ranks, directory, STEPS, hook=False, compressor=point.hook)
    for attempt in range(2):
        run = directory / f"{name}_{attempt}"
        try:
            rate, burst = f"{point.rate_mbit}mbit", f"{BURST_KIB}kb"
            with netns.Hosts(point.ranks, rate, burst, QUEUE, CONGESTION) as hosts:
                world = forked_ranks.run(job, run, hosts.names, hosts.address(0))
                return _read(world), hosts.dropped()
        except RuntimeError as error:
            print(f"{name}: {error}", flush=True)
    raise SystemExit(f"{name} failed twice")


def _read(world: Path) -> list[RecordedJob]:
    found, refused = read_recorded(world)
    if refused:
        raise CommprofError("; ".join(refused))
    return found


def fitted(directory: Path) -> Replay:
    """Fits a model to runs at 2 ranks and one bandwidth.

    Each hook is run with the finest buckets and with a single bucket. One more run, without a hook,
    has very small buckets, because large buckets hide the latency.
    """
    base: list[RecordedJob] = []
    for hook, cap in itertools.product(HOOKS, (FINEST, ONE)):
        base += _undisturbed(Point(FITTED_RANKS, FITTED_MBIT, cap, hook), directory)[0]
    small, *_ = _undisturbed(Point(FITTED_RANKS, FITTED_MBIT, 0.001, ""), directory, SMALL)
    profile, _ = build_profile([], [*base, *small], ["2 ranks"], FITTED_MBIT * 1e6 / 8, 0.0)
    return Replay(base[0].schedule, profile)


def transformer(directory: Path, rounds: int) -> Iterator[dict[str, Any]]:
    """Predicts and measures caps and hooks at 2 ranks on this host.

    The predictions come from recordings of one cap with each hook.

    The speed of this machine drifts by more than the allowed error. So all settings run in every
    round, in random order, and the setting that the model replays runs twice. The measured step of
    a setting is its median ratio to the replayed setting in the same round, times the median step
    of the replayed setting.
    """
    asked = list(itertools.product(TRANSFORMER_CAPS_MIB, HOOKS))
    replayed = (1.0, "")
    fitted_to = list(itertools.product((1.0,), HOOKS))
    taken: dict[tuple[float, str], list[list[RecordedJob]]] = {}
    for number in range(rounds):
        settings = [*fitted_to, *asked, replayed]
        for turn, (cap, hook) in enumerate(random.Random(number).sample(settings, len(settings))):
            made = directory / f"transformer_{number}_{turn}"
            job = Job("transformer", 2, made, TRANSFORMER_STEPS, hook=False, compressor=hook)
            of_rounds = taken.setdefault((cap, hook), [[] for _ in range(rounds)])
            of_rounds[number] += _read(forked_ranks.run(job, made, [], "localhost", cap))
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    base = [each for key in fitted_to for runs in taken[key] for each in runs]
    plain = sorted((each for runs in taken[replayed] for each in runs), key=_step_s)
    replay = Replay(plain[len(plain) // 2].schedule, build_profile([], base, ["2 ranks"])[0])
    replayed_s = [_mean_step_s(runs) for runs in taken[replayed]]
    for cap, hook in asked:
        ratios = [
            _mean_step_s(runs) / beside_s
            for runs, beside_s in zip(taken[cap, hook], replayed_s, strict=True)
        ]
        scenario = Scenario(2, bucket_cap_bytes=cap * MIB, hook=hook)
        step_s = float(np.median(ratios)) * _step_s(plain[len(plain) // 2])
        yield {
            **_row({"cap_mib": cap, "hook": hook}, replay, scenario, taken[cap, hook][0], step_s),
            "rounds": rounds,
            "ratio_quartiles": np.percentile(ratios, [25, 75]).tolist(),
        }


def _row(
    setting: dict[str, Any],
    replay: Replay,
    scenario: Scenario,
    measured: Sequence[RecordedJob],
    step_s: float,
) -> dict[str, Any]:
    found = replay.predict(scenario)
    values = {
        "measured": step_s,
        "predicted": found.step_s.value,
        "no_overlap": found.no_overlap_s,
        "perfect_overlap": found.perfect_overlap_s,
    }
    return {
        **setting,
        "buckets": len(measured[0].schedule.bucket_bytes),
        "predicted_buckets": found.buckets,
        **{f"{name}_ms": value * 1e3 for name, value in values.items()},
        "error": found.step_s.value / step_s - 1,
        "no_overlap_error": found.no_overlap_s / step_s - 1,
        "perfect_overlap_error": found.perfect_overlap_s / step_s - 1,
    }


def _mean_step_s(runs: Sequence[RecordedJob]) -> float:
    return float(np.mean([_step_s(each) for each in runs]))


def _step_s(run: RecordedJob) -> float:
    return float(np.median(run.schedule.period_s))


def is_transformer(row: dict[str, Any]) -> bool:
    """True for a row of the transformer study; such a row has no number of ranks."""
    return "ranks" not in row


def errors(rows: Sequence[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Returns the mean and the worst absolute error of the model and of each bound."""
    found = {}
    for what, name in ERRORS.items():
        values = np.abs([row[name] for row in rows])
        assert not np.isnan(values).any()
        found[what] = float(values.mean()), float(values.max())
    return found


def demands(rows: Sequence[dict[str, Any]]) -> list[Demand]:
    """Checks the demands on the model's errors at all points of one study."""
    found = errors(rows)
    mean, worst = (100 * value for value in found["model"])
    of_transformer = is_transformer(rows[0])
    study = "transformer" if of_transformer else "timed workload"
    wanted = len(TRANSFORMER_CAPS_MIB) * len(HOOKS) if of_transformer else len(points())
    what = f"{study}, error of the step"
    asked = [of_all(f"{study}, points measured", len(rows), len(rows), wanted)]
    asked.append(at_most(f"{what}: mean", mean, 100 * MEAN, " %"))
    if not of_transformer:
        asked.append(at_most(f"{what}: worst", worst, 100 * WORST, " %"))
    for bound in ("no overlap", "perfect overlap"):
        other = 100 * found[bound][0]
        figure, limit = f"{mean:.2f} %", f"below that bound's {other:.2f} %"
        asked.append(Demand(f"{what}: mean, compared with {bound}", figure, limit, mean < other))
    return asked


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, help="points in this file are not run again")
    parser.add_argument(
        "--minutes",
        type=float,
        default=10,
        help="start no point after MINUTES (not with --transformer)",
    )
    parser.add_argument(
        "--points", type=int, default=len(points()), help="at most this many points"
    )
    parser.add_argument("--transformer", action="store_true", help="study the transformer workload")
    parser.add_argument("--rounds", type=int, default=6, help="for --transformer (default: 6)")
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes
    rows = [row for row in read_rows(args.results) if is_transformer(row) == args.transformer]
    kept = Lines(args.results)
    with tempfile.TemporaryDirectory(prefix="commprof-predict-") as name:
        if args.transformer:
            found = transformer(Path(name), args.rounds)
        elif reason := netns.unavailable():
            raise SystemExit(f"no network namespaces here: {reason}")
        else:
            found = _study(Path(name), rows, args.points, end)
        for row in found:
            rows.append(row)
            print(json.dumps(row), flush=True)
            kept.append(row)
    return _judged(rows)


def _study(
    directory: Path, rows: list[dict[str, Any]], most: int, end: float
) -> Iterator[dict[str, Any]]:
    done = {tuple(row[key] for key in asdict(points()[0])) for row in rows}
    left = [p for p in points()[:most] if tuple(asdict(p).values()) not in done]
    if not left:
        return
    replay = fitted(directory)
    for point in left:
        if time.monotonic() > end:
            return
        measured, lost, share = _undisturbed(point, directory)
        row = _row(asdict(point), replay, point.scenario, measured, _mean_step_s(measured))
        yield {**row, "lost_packets": lost, "stolen": round(share, 4)}


def _undisturbed(
    point: Point, directory: Path, scale: float = 1.0
) -> tuple[list[RecordedJob], int, float]:
    """Repeats `record` if the hypervisor steals too much time; adds the stolen share."""
    for attempt in range(_TRIES):
        stolen = Stolen()
        measured, lost = record(point, directory / f"try_{attempt}", scale)
        share = stolen.share()
        if share <= MOST_STOLEN:
            break
        print(f"{point}: {share:.1%} of the processors' time was stolen", flush=True)
    return measured, lost, share


def _judged(rows: list[dict[str, Any]]) -> int:
    if not rows:
        raise SystemExit("no point was run; give more --minutes")
    print(tabulate(rows, headers="keys", floatfmt=".3g"))
    for what, (mean, worst) in errors(rows).items():
        print(f"{what}: mean error {mean:.2%}, worst error {worst:.2%}")
    return judged(demands(rows))


if __name__ == "__main__":
    sys.exit(main())
