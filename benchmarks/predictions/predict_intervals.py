"""Measures how often predicted intervals contain the measured step, in random jobs.

    PYTHONPATH=. python benchmarks/predictions/predict_intervals.py --results intervals.jsonl
        --minutes 8

A job trains the `timed` workload over gloo on this host, with random compute and gradients. It runs
at 2, 3 and 4 ranks with one bucket cap, and at one of these sizes with another cap. Each size is
predicted from the two other sizes, and the other cap is predicted from all three sizes. Held-out
runs show the model's error.

An interval holds if it contains the measured median step. The exit code is 1 if fewer than 95 of
100 intervals hold. Two other intervals are counted, but have no limit: one allows for sampling and
fit alone, and one is the same interval widened by the worst held-out error. With --results, jobs in
the file are not run again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.judging.demands import Demand, judged
from benchmarks.judging.results_file import Lines, read_rows
from benchmarks.ranks import forked_ranks
from commprof.forecast.fit.build import build_profile
from commprof.forecast.replay.recorded import RecordedJob, read_recorded
from commprof.forecast.replay.replay import Replay
from commprof.forecast.scenario.scenario import Scenario
from commprof.forecast.what_if.answers import answer
from commprof.launch.job import Job

STEPS = 25
SIZES = (2, 3, 4)
MIB = 1 << 20
#: Percentage of intervals that must hold.
HOLD = 95


def job(number: int) -> tuple[dict[str, Any], float, float, int]:
    """Draws a job: options, two bucket caps in MiB, and the number of ranks for the second cap."""
    chosen = random.Random(number)
    layers = chosen.randint(3, 10)
    options = {
        "layers": layers,
        "data_ms": chosen.choice((2, 8)),
        "forward_ms": 2,
        "backward_ms": "/".join(f"{chosen.uniform(2, 15):.1f}" for _ in range(layers)),
        "gradient_mb": "/".join(f"{chosen.uniform(0.05, 3):.2f}" for _ in range(layers)),
    }
    first, second = chosen.sample((0.1, 1.0, 4.0, 100.0), 2)
    return options, first, second, chosen.choice(SIZES)


def measured(directory: Path, options: dict[str, Any], ranks: int, cap: float) -> RecordedJob:
    """Runs a setting, and returns its recording."""
    words = {**options, "bucket_cap_mb": f"{cap:g}"}
    workload = "timed:" + ",".join(f"{key}={value}" for key, value in words.items())
    run = directory / f"{ranks}_{cap:g}"
    world = forked_ranks.run(Job(workload, ranks, run, STEPS, hook=False), run, [], "localhost")
    found, refused = read_recorded(world)
    assert not refused, refused
    return found[0]


def predictions(number: int, directory: Path) -> Iterator[dict[str, Any]]:
    """Yields a row for each interval of one job."""
    options, cap, other_cap, ranks = job(number)
    runs = {size: measured(directory, options, size, cap) for size in SIZES}
    for size in SIZES:
        given = [each for other, each in runs.items() if other != size]
        yield _row(number, given, Scenario(size, ranks_per_host=size), runs[size])
    changed = measured(directory, options, ranks, other_cap)
    scenario = Scenario(ranks, bucket_cap_bytes=other_cap * MIB, ranks_per_host=ranks)
    yield _row(number, list(runs.values()), scenario, changed)


def _row(
    number: int, given: Sequence[RecordedJob], scenario: Scenario, run: RecordedJob
) -> dict[str, Any]:
    """Returns a row; the model is fitted to ``given``, and replays the last job of ``given``."""
    *others, base = given
    profile, _ = build_profile([], list(given), [each.source for each in given])
    answers = answer(Replay(base.schedule, profile), [scenario], given, others, None, float("nan"))
    assert answers.error is not None
    step, own = answers.answers[0].interval_s, answers.answers[0].prediction.step_s
    step_s = float(np.median(run.schedule.period_s))
    worst = 1 + answers.error.worst
    return {
        "job": number,
        "ranks": scenario.world_size,
        "other_cap": bool(scenario.bucket_cap_bytes > 0),
        "measured_ms": 1e3 * step_s,
        "predicted_ms": 1e3 * step.value,
        "low_ms": 1e3 * step.low,
        "high_ms": 1e3 * step.high,
        "range_ms": [1e3 * own.low, 1e3 * own.high],
        "held_out_errors": [each.error for each in answers.checks if each.held_out],
        "holds": bool(step.low <= step_s <= step.high),
        "range_holds": bool(own.low <= step_s <= own.high),
        "worst_error_holds": bool(own.low / worst <= step_s <= own.high * worst),
    }


def demands(rows: Sequence[dict[str, Any]]) -> list[Demand]:
    """Checks that enough intervals hold."""
    held, in_range, in_worst = (
        sum(row[name] for row in rows) for name in ("holds", "range_holds", "worst_error_holds")
    )
    figure = f"{held} of {len(rows)} (with sampling and fit alone: {in_range}; widened by the "
    return [
        Demand(
            "intervals of predicted steps that contain the measured step",
            f"{figure}worst held-out error: {in_worst})",
            f"at least {HOLD} of 100",
            held >= HOLD / 100 * len(rows),
        )
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, help="one JSON line per interval")
    parser.add_argument("--minutes", type=float, default=8, help="start no job after MINUTES")
    parser.add_argument("--jobs", type=int, default=25, help="at most this many jobs (default: 25)")
    args = parser.parse_args()
    rows, kept = read_rows(args.results), Lines(args.results)
    done = {row["job"] for row in rows}
    end = time.monotonic() + 60 * args.minutes
    for number in itertools.takewhile(lambda _: time.monotonic() < end, range(args.jobs)):
        if number in done:
            continue
        with tempfile.TemporaryDirectory(prefix="commprof-intervals-") as name:
            found = list(predictions(number, Path(name)))
        for row in found:
            rows.append(row)
            kept.append(row)
            print(json.dumps(row), flush=True)
    return judged(demands(rows))


if __name__ == "__main__":
    sys.exit(main())
