"""Runs a small job with each mistake of docs/causes.md, and its healthy twin, on two ranks.

    PYTHONPATH=. python benchmarks/causes/catalogue.py --results benchmarks/results/causes.jsonl

Jobs are in ``benchmarks/causes/jobs``; ``FIXED=1`` makes the twin, with the fix applied. Each round
runs the job and its twin one after the other with `commprof run`. The report of the job must name
the cause on the first screen, and the report of the twin must name no cause.

The measured gain is the reduction of the mean step from the job to its twin. It is compared with
the gain that the report predicts for the fix; the error is in percent of the job's step. As A/A
control, each script is compared with its own repetition in the next round. The standard error of
the control is the noise of the measured gain, and only an error beyond this noise is judged.

Sleeping jobs sleep where other jobs compute. Some of the computing jobs also rest, because on hosts
with only one core per rank the threads of the exchanges take a core from compute. The processes are
forks of one process that has imported torch, so all jobs together take about ten minutes. Jobs in
the results file are not run again. The exit code is 1 if a demand is not met.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from benchmarks.judging.demands import Demand, at_least, at_most, judged
from benchmarks.judging.results_file import Lines, read_rows
from tests.support.machines.fork_server import Forked

JOBS_FOLDER = Path(__file__).parent / "jobs"
#: Jobs, each with the cause that its report must name.
JOBS = {
    "trained_apart": "trained-apart",
    "weights_differ": "weights-differ",
    "ddp_wrong_pass": "ddp-wrong-pass",
    "ddp_every_pass": "ddp-every-pass",
    "every_pass_computing": "ddp-every-pass",
    "cached_loss": "ddp-every-pass",
    "ddp_other_model": "ddp-other-model",
    "ddp_buffers": "ddp-buffers",
    "ddp_buffers_batch_norm": "ddp-buffers",
    "buffers_computing": "ddp-buffers",
    "ddp_unused_parameters": "ddp-unused-parameters",
    "ddp_static_graph": "ddp-static-graph",
    "ddp_frozen_gradients": "ddp-frozen-gradients",
    "ddp_small_buckets": "ddp-small-buckets",
    "small_buckets_sleeping": "ddp-small-buckets",
    "ddp_each_module": "ddp-each-module",
    "ddp_one_bucket": "ddp-one-bucket",
    "averaged_after_ddp": "exchanged-again",
    "average_broadcast": "exchanged-again",
    "flat_gradients": "own-exchange",
    "hook_each_parameter": "own-exchange",
    "statistics_each_layer": "statistics-each-layer",
    "fsdp_one_unit": "fsdp-one-unit",
    "one_unit_computing": "fsdp-one-unit",
    "fsdp_small_units": "fsdp-small-units",
    "fsdp_every_pass": "fsdp-every-pass",
    "fsdp_every_pass_computing": "fsdp-every-pass",
    "fsdp_gathers_twice": "fsdp-gathers-twice",
    "scalars_one_by_one": "scalars-one-by-one",
    "scalars_gathered": "scalars-one-by-one",
    "norms_one_by_one": "scalars-one-by-one",
    "positives_of_levels": "scalars-one-by-one",
    "metric_each_step": "scalars-one-by-one",
    "loss_each_pass": "scalars-every-pass",
    "tensors_one_by_one": "tensors-one-by-one",
    "weights_averaged": "tensors-one-by-one",
    "zero_one_by_one": "zero-one-by-one",
    "gathered_outputs": "gathered-outputs",
    "gathered_parameters": "gathered-parameters",
    "debug_detail": "debug-detail",
    "pickled_objects": "pickled-objects",
    "objects_broadcast": "pickled-objects",
    "objects_every_fifth": "pickled-objects",
    "groups_in_turns": "groups-in-turns",
    "groups_made_anew": "groups-made-anew",
    "pipeline_bubble": "pipeline-bubble",
    "barrier_each_step": "barrier-each-step",
    "barrier_after_log": "barrier-each-step",
    "rank_alone": "rank-alone",
    "checkpoint_alone": "rank-alone",
    "evaluates_alone": "rank-alone",
    "logs_each_step": "rank-busier",
    "garbage_in_turns": "garbage-in-turns",
    "caches_in_turns": "ranks-in-turns",
    "compiled_anew": "compiled-anew",
    "late_loading": "late-loading",
    "decodes_slowly": "late-loading",
    "workers_restarted": "workers-restarted",
    "batches_from_one_rank": "batches-from-one-rank",
    "uneven_batches": "uneven-batches",
    "late_embedding": "late-embedding",
    "embedding_computing": "late-embedding",
    "too_many_threads": "too-many-threads",
    "same_core": "same-core",
    "fewer_batches": "fewer-batches",
}
#: Options of `commprof run` that a job needs to show its cause.
OPTIONS = {"weights_differ": ["--check-sync", "5"]}
#: Demands: share of jobs whose cause is named, share of twins without a cause, and error of the
#: gains in percent.
NAMED, SILENT, ERROR = 0.925, 0.975, 2.0
_ROUNDS = 2
_LIMIT_S = 180


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, metavar="FILE", help="file of JSON lines")
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--runs", type=Path, metavar="DIR", help="folder that keeps the recordings")
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=list(JOBS))
    args = parser.parse_args()
    lines, rows = Lines(args.results), read_rows(args.results)
    done = {row["job"] for row in rows}
    begin_s = time.monotonic()
    for job in args.jobs:
        if job not in done:
            rows.append(measured(job, args.rounds, args.runs))
            lines.append(rows[-1])
            print(json.dumps(rows[-1]), flush=True)
    print(tabulate([_cells(row) for row in rows], _HEADERS))
    print(f"took {(time.monotonic() - begin_s) / 60:.1f} min")
    return judged(demands(rows))


def measured(job: str, rounds: int, keep: Path | None = None) -> dict[str, Any]:
    """Runs a job and its twin in turns; returns the named causes, and the steps of each run."""
    runs: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for fixed in (False, True):
                name = f"{job}-{number}-{'twin' if fixed else 'job'}"
                runs[fixed].append(_run(job, fixed, (keep or Path(folder)) / name))
    gains = [gain for run in runs[False] if (gain := run["gain"]) is not None]
    return {
        "job": job,
        "cause": JOBS[job],
        "first": [run["first"] for run in runs[False]],
        "twin": [run["named"] for run in runs[True]],
        "steps_ms": [run["step_ms"] for run in runs[False]],
        "twin_steps_ms": [run["step_ms"] for run in runs[True]],
        "said": gains,
    }


def _run(job: str, fixed: bool, directory: Path) -> dict[str, Any]:
    """Runs one job under commprof; returns the causes and steps from its JSON result."""
    paths = [str(JOBS_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "FIXED": str(int(fixed)), "PYTHONPATH": os.pathsep.join(paths)}
    run = ["-m", "commprof.run", "--nproc", "2", *OPTIONS.get(job, [])]
    run += ["--output", str(directory), str(JOBS_FOLDER / f"{job}.py")]
    _called(run, environment, spare_count=2)
    report = ["-m", "commprof", "report", str(directory), "--format", "json"]
    result = json.loads(_called(report, environment))
    figures = result["runs"][-1]["aggregated_metrics"]
    causes = {cause["id"]: cause for cause in figures["causes"]}
    saving = (causes.get(JOBS[job]) or {}).get("saving")
    return {
        "first": result["card"]["cause"],
        "named": list(causes),
        "step_ms": figures["parts"]["step_ms"],
        "gain": saving["saved"]["value"] if saving else None,
    }


def _called(words: list[str], environment: dict[str, str], spare_count: int = 0) -> str:
    """Runs a program in a fork that has imported torch; returns the program's output.

    Raises:
        ChildProcessError: the program failed.
    """
    process = Forked(words, environment, split=True, spare_count=spare_count)
    printed, errors = process.communicate(_LIMIT_S)
    if process.returncode:
        raise ChildProcessError(f"{words}: {errors[-2000:]}")
    return printed


def won(row: dict[str, Any]) -> float:
    """Returns the measured gain, as a fraction of the job's step."""
    return 1 - float(np.mean(row["twin_steps_ms"])) / float(np.mean(row["steps_ms"]))


def error(row: dict[str, Any]) -> float:
    """Difference between the reported and the measured gain, in percent of the step.

    NaN if the report gave no gain.
    """
    return 100 * abs(float(np.mean(row["said"])) - won(row)) if row["said"] else float("nan")


def noise(row: dict[str, Any]) -> float:
    """Standard error of the measured gain, in percent of the step, from the A/A control.

    The control compares repetitions: runs of the same script differ by chance only. NaN if there
    was only one round.
    """
    if len(row["steps_ms"]) < 2:
        return float("nan")
    squares = [np.var(row[key], ddof=1) / len(row[key]) for key in ("steps_ms", "twin_steps_ms")]
    return 100 * float(np.sqrt(sum(squares))) / float(np.mean(row["steps_ms"]))


def demands(rows: list[dict[str, Any]]) -> list[Demand]:
    """Checks the demands on the jobs that were run."""
    first = [name == row["cause"] for row in rows for name in row["first"]]
    silent = [not names for row in rows for names in row["twin"]]
    said = [row for row in rows if row["said"]]
    errors = [max(0.0, error(row) - np.nan_to_num(noise(row))) for row in said]
    return [
        at_least(
            f"runs whose first screen names the cause ({sum(first)} of {len(first)})",
            _mean(first),
            NAMED,
        ),
        at_least(
            f"runs of healthy twins without a cause ({sum(silent)} of {len(silent)})",
            _mean(silent),
            SILENT,
        ),
        at_most(
            f"mean difference of the gain said and measured, beyond the noise ({len(said)} jobs)",
            _mean(errors),
            ERROR,
            " % of the step",
        ),
        at_most(
            "mean noise of the measured gain, by jobs run against themselves",
            _mean([noise(row) for row in said]),
            ERROR,
            " % of the step",
        ),
    ]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


_HEADERS = (
    "job",
    "first screens",
    "twins",
    "step ms",
    "twin ms",
    "said",
    "measured",
    "error %",
    "A/A %",
)


def _cells(row: dict[str, Any]) -> tuple[Any, ...]:
    right = sum(name == row["cause"] for name in row["first"])
    return (
        row["job"],
        f"{right} of {len(row['first'])}",
        f"{sum(not names for names in row['twin'])} of {len(row['twin'])} silent",
        f"{np.mean(row['steps_ms']):.1f}",
        f"{np.mean(row['twin_steps_ms']):.1f}",
        f"{np.mean(row['said']):.1%}" if row["said"] else "-",
        f"{won(row):.1%}",
        f"{error(row):.1f}" if row["said"] else "-",
        f"{noise(row):.1f}",
    )


if __name__ == "__main__":
    sys.exit(main())
