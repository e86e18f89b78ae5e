"""Tests how well the report predicts the step without the delay of a late rank.

    PYTHONPATH=. python benchmarks/attribution/gain_error.py --results gain_error.jsonl

Two ranks train a DDP model that always computes, each rank on its own core. The steps are divided
into blocks of four. In one of every two blocks, chosen at random, one rank is late in each step: it
sleeps or multiplies further matrices in one phase, for 0.1 to 0.8 steps. Steps with and without the
delay alternate so fast that a machine that becomes slower slows both kinds.

The report predicts the mean step if the late rank were as fast as the other rank. The true value is
the mean of the steps without the delay, from the same trace. A step right after a late step is left
out, because it may begin late. Stalled steps are left out too, as in the report.

Every eight steps, after a barrier, the ranks swap cores. Steps right after a swap take longer.
Swaps are in the middle of blocks, so that steps with and without the delay are affected alike.

There are 50 jobs with a delay, and 10 control jobs without a delay. The error in the control jobs
is the noise of the comparison. ``--rounds`` runs each job several times and takes the mean. Runs in
the results file count. On a machine with many cores, ``taskset -c 2,3 ... --part 1/6`` runs every
sixth job; the results files of all parts can be concatenated. Prints a line per demand. The exit
code is 1 if a demand is not met.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.judging.demands import Demand, at_most, judged, of_all
from benchmarks.judging.results_file import Lines, read_rows

DELAYS, CONTROLS = 50, 10
#: Number of steps in a job, and in a block. The job is so short that the report replays all steps.
STEPS, BLOCK_STEPS = 1000, 4
PHASES = ("data", "forward", "backward", "optimizer")
#: Shortest and longest delay, as fractions of a step without a delay.
SHARES = (0.10, 0.80)
#: Largest errors allowed, as fractions of the step.
MEAN, WORST = 0.01, 0.03
#: Number of jobs that a pair of processes runs. ``run_module`` limits the time of the processes.
_BATCH = 2
_Rows = list[dict[str, Any]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, help="JSON lines; earlier runs are not repeated")
    parser.add_argument("--minutes", type=float, default=90, help="time limit for new batches")
    parser.add_argument("--rounds", type=int, default=1, help="number of runs of each job")
    parser.add_argument("--part", default="0/1", help="K/N: only jobs K, K + N, K + 2 N, ...")
    args = parser.parse_args()
    first, every = map(int, args.part.split("/"))
    end = time.monotonic() + 60 * args.minutes
    rows, kept = read_rows(args.results), Lines(args.results)
    done = Counter(row["seed"] for row in rows)
    jobs = range(first, DELAYS + CONTROLS, every)
    seeds = [seed for turn in range(args.rounds) for seed in jobs if done[seed] <= turn]
    step_ms = _run([_job(0, 0.0)])[0]["step_ms"] if seeds else 0.0
    for at in range(0, len(seeds), _BATCH):
        if time.monotonic() > end:
            break
        for row in _run([_job(seed, step_ms) for seed in seeds[at : at + _BATCH]]):
            print(row, flush=True)
            rows.append(row)
            kept.append(row)
    return judged(demands(rows))


def demands(rows: _Rows) -> list[Demand]:
    """Checks the demands on the errors of the predicted gains."""
    errors = np.abs(_errors([row for row in rows if row["delay_ms"]]))
    noise = np.abs(_errors([row for row in rows if not row["delay_ms"]]))
    if not len(errors):
        return []
    shown = ""
    if len(noise):
        shown = f" (jobs without a delay: mean {noise.mean():.2%}, worst {noise.max():.2%})"
    what = "error of the predicted gain, in percent of the step"
    return [
        of_all(
            "jobs with a delay whose predicted gain was compared with the true gain",
            len(errors),
            len(errors),
            DELAYS,
        ),
        at_most(f"{what}: mean", 100 * errors.mean(), 100 * MEAN, " %"),
        at_most(f"{what}: worst{shown}", 100 * errors.max(), 100 * WORST, " %"),
    ]


def _errors(rows: _Rows) -> list[float]:
    """Returns each job's relative error, from the means over the job's runs."""
    by_job: dict[int, _Rows] = {}
    for row in rows:
        by_job.setdefault(row["seed"], []).append(row)
    means = [
        [float(np.mean([row[name] for row in runs])) for name in ("predicted_ms", "without_ms")]
        for runs in by_job.values()
    ]
    return [predicted_ms / without_ms - 1 for predicted_ms, without_ms in means]


def _job(seed: int, step_ms: float) -> dict[str, Any]:
    """Returns job number ``seed``; the last jobs are the control jobs."""
    drawn = random.Random(seed)
    pairs = STEPS // (2 * BLOCK_STEPS)
    blocks = [is_late for _ in range(pairs) for is_late in drawn.sample((False, True), 2)]
    late = [is_late for is_late in blocks for _ in range(BLOCK_STEPS)]
    share = drawn.uniform(*SHARES) if seed < DELAYS else 0.0
    return {
        "seed": seed,
        "rank": seed % 2,
        "phase": drawn.choice(PHASES),
        "computes": drawn.random() < 0.5,
        "delay_ms": share * step_ms,
        "late": late,
        "steps_per_core": 2 * BLOCK_STEPS,
        "first_swap": BLOCK_STEPS // 2,
    }


def _run(jobs: list[dict[str, Any]]) -> _Rows:
    from tests.support.machines.ranks import run_module

    with tempfile.TemporaryDirectory(prefix="commprof-gain-") as directory:
        listed = Path(directory) / "jobs.json"
        listed.write_text(json.dumps(jobs))
        run_module("benchmarks.ranks.gain_rank", [str(listed), directory], 2)
        return [_judge(job, Path(directory) / str(at)) for at, job in enumerate(jobs)]


def _judge(job: dict[str, Any], directory: Path) -> dict[str, Any]:
    from commprof.analysis.replay.gains import gains
    from commprof.analysis.step.measured import measured_world, slowest_ns
    from commprof.analysis.step.stalls import stalled
    from commprof.trace.reader import read_trace
    from commprof.trace.run.run_directory import WorldRun

    traces = {rank: read_trace(directory / f"rank_{rank}.trace") for rank in range(2)}
    seen = measured_world(WorldRun(2, directory, {}, traces, ()))
    assert seen is not None
    found = gains(seen)
    assert found is not None
    wall_ms = np.mean([part.wall_ns for part in seen.measured], axis=0) / 1e6
    step = seen.measured[0].step.astype(int)
    late = np.array(job["late"])
    begins_late = np.roll(late, 1)
    alone = ~(late | begins_late)[step] & ~stalled(slowest_ns(seen.measured))
    predicted = [g for g in found.gains if g.change == "rank" and g.rank == job["rank"]]
    predicted_ms = predicted[0].step_ms if predicted else found.step_ms
    without_ms = float(wall_ms[alone].mean())
    return {
        **{key: job[key] for key in ("seed", "rank", "phase", "computes", "delay_ms")},
        "step_ms": found.step_ms,
        "late_ms": float(wall_ms[late[step]].mean()),
        "without_ms": without_ms,
        "predicted_ms": predicted_ms,
        "error": (predicted_ms - without_ms) / without_ms,
    }


if __name__ == "__main__":
    sys.exit(main())
