"""Runs small jobs that each have one mistake of docs/causes.md, and runs their healthy twins.

    PYTHONPATH=. python benchmarks/causes/catalogue.py --results benchmarks/results/causes.jsonl

The jobs are in ``benchmarks/causes/jobs``. With ``FIXED=1`` a job runs without its mistake: this is
the job's twin. Each round records the job and its twin with `commprof run`, on two ranks. The
report of the job must name the cause on the first screen. The report of the twin must name no
cause.

If the report predicts a gain, the round also starts the job and its twin together, several times.
They take turns of ten steps, so both meet the same disturbances of the machine. The measured gain
is the reduction of the mean step from the job's turns to the twin's turns. It is compared with the
gain that the report predicts for the fix. The error is in percent of the job's step. Processes of
the same script differ by several percent, so the noise of the measured gain is its standard error
over the starts. Only the error beyond the noise is judged.

A job whose loop is not ``common.steps()`` takes no turns. Its gain comes from the recorded steps,
and its noise from an A/A control, which compares each script with its repetition in the next round.

Some jobs sleep in place of compute. Some computing jobs also rest: on a host with one core per
rank, the threads of the exchanges then get a core. All jobs together take about 75 minutes. Jobs
in the results file are not run again. The exit code is 1 if a demand is not met.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import struct
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
    "fsdp_gathers_each_pass": "fsdp-gathers-each-pass",
    "fsdp_gathers_twice": "fsdp-gathers-twice",
    "scalars_one_by_one": "scalars-one-by-one",
    "scalars_gathered": "scalars-one-by-one",
    "norms_one_by_one": "scalars-one-by-one",
    "positives_of_levels": "scalars-one-by-one",
    "metric_each_step": "scalars-one-by-one",
    "loss_each_pass": "scalars-every-pass",
    "scalar_each_step": "scalar-each-step",
    "tensors_one_by_one": "tensors-one-by-one",
    "weights_averaged": "tensors-one-by-one",
    "zero_one_by_one": "zero-one-by-one",
    "gathered_outputs": "gathered-outputs",
    "gathered_parameters": "gathered-parameters",
    "gathered_gradients": "gathered-gradients",
    "debug_detail": "debug-detail",
    "anomaly_mode": "anomaly-mode",
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
    "evaluated_by_all": "evaluated-by-all",
    "logs_each_step": "rank-busier",
    "garbage_in_turns": "garbage-in-turns",
    "caches_in_turns": "ranks-in-turns",
    "compiled_anew": "compiled-anew",
    "late_loading": "late-loading",
    "decodes_slowly": "late-loading",
    "workers_restarted": "workers-restarted",
    "pass_each_step": "pass-each-step",
    "batches_from_one_rank": "batches-from-one-rank",
    "uneven_batches": "uneven-batches",
    "epoch_not_set": "epoch-not-set",
    "late_embedding": "late-embedding",
    "embedding_computing": "late-embedding",
    "too_many_threads": "too-many-threads",
    "same_core": "same-core",
    "fewer_batches": "fewer-batches",
}
#: Options of `commprof run` that a job needs to show its cause.
OPTIONS = {"weights_differ": ["--check-sync", "5"]}
#: Demands: least share of jobs whose report names the cause, least share of twins whose report
#: names no cause, and largest mean error of the gains in percent of the step.
NAMED, SILENT, ERROR = 0.925, 0.975, 2.0
_ROUNDS = 2
_LIMIT_S = 180
_RANKS = 2
#: Steps of a turn, and turns of each script after a start. The first turn is a warm-up.
_TURN_STEPS, _TURNS = 10, 3
#: Number of times per round that a job and its twin are started to take turns.
_STARTS = 3
#: Steps of a recorded run: a warm-up step, and then the steps of several turns.
_STEPS = 7 * _TURN_STEPS + 1


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
    """Runs a job and its twin (the fixed job); returns the causes and steps of all runs."""
    runs: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    turns: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for fixed in (False, True):
                name = f"{job}-{number}-{'twin' if fixed else 'job'}"
                runs[fixed].append(_run(job, fixed, (keep or Path(folder)) / name))
            if runs[False][-1]["gain"] is not None and _takes_turns(job):
                turns += [
                    _in_turns(job, Path(folder) / f"{job}-{number}-turns-{start}")
                    for start in range(_STARTS)
                ]
    gains = [gain for run in runs[False] if (gain := run["gain"]) is not None]
    return {
        "job": job,
        "cause": JOBS[job],
        "first": [run["first"] for run in runs[False]],
        "twin": [run["named"] for run in runs[True]],
        "steps_ms": [run["step_ms"] for run in runs[False]],
        "twin_steps_ms": [run["step_ms"] for run in runs[True]],
        "said": gains,
        **({"turns_ms": turns} if turns else {}),
    }


def _takes_turns(job: str) -> bool:
    return "common.steps()" in (JOBS_FOLDER / f"{job}.py").read_text()


def _in_turns(job: str, directory: Path) -> tuple[float, float]:
    """Starts a job and its twin (the fixed job), which run in turns.

    Returns:
        Mean step of the job and mean step of its twin, in ms.
    """
    sides = []
    for fixed in (False, True):
        pipes = directory / f"{'twin' if fixed else 'job'}-pipes"
        pipes.mkdir(parents=True)
        begins, took = (
            [_pipe(pipes / f"{name}_{rank}") for rank in range(_RANKS)]
            for name in ("begins", "took")
        )
        settings = {"STEPS": str(_TURNS * _TURN_STEPS), "TURN_STEPS": str(_TURN_STEPS)}
        environment = {**_environment(fixed), **settings, "TURNS": str(pipes)}
        words = _words(job, directory / f"{'twin' if fixed else 'job'}")
        sides.append((Forked(words, environment, split=True, spare_count=_RANKS), begins, took))
    pairs = []
    try:
        for number in range(_TURNS):
            pair = [0.0, 0.0]
            # job, twin, twin, job, ...: a steady drift of the machine cancels out.
            for side in ((0, 1), (1, 0))[number % 2]:
                pair[side] = _turn_ms(*sides[side])
            pairs.append((pair[0], pair[1]))
    finally:
        for process, begins, took in sides:
            for pipe in begins:
                os.write(pipe, b"e")
            _printed(process)
            for pipe in (*begins, *took):
                os.close(pipe)
    job_ms, twin_ms = np.mean(pairs[1:], axis=0).tolist()
    return job_ms, twin_ms


def _pipe(path: Path) -> int:
    """Makes a named pipe; opens both ends, because opening one end waits for the other end."""
    os.mkfifo(path)
    return os.open(path, os.O_RDWR)


def _turn_ms(process: Forked, begins: Sequence[int], took: Sequence[int]) -> float:
    """Lets a job run one turn; returns the mean step of the slowest rank in ms.

    Raises:
        ChildProcessError: a rank did not end its turn.
    """
    for pipe in begins:
        os.write(pipe, b"b")
    longest_ns = 0
    for pipe in took:
        if not select.select([pipe], [], [], _LIMIT_S)[0]:
            raise ChildProcessError(f"{process.args}: a turn did not end within {_LIMIT_S} s")
        longest_ns = max(longest_ns, struct.unpack("<q", os.read(pipe, 8))[0])
    return longest_ns / _TURN_STEPS / 1e6


def _environment(fixed: bool) -> dict[str, str]:
    paths = [str(JOBS_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "FIXED": str(int(fixed)), "PYTHONPATH": os.pathsep.join(paths)}


def _words(job: str, directory: Path) -> list[str]:
    """Returns the command that records a job."""
    run = ["-m", "commprof.run", "--nproc", str(_RANKS), *OPTIONS.get(job, [])]
    return [*run, "--output", str(directory), str(JOBS_FOLDER / f"{job}.py")]


def _run(job: str, fixed: bool, directory: Path) -> dict[str, Any]:
    environment = {**_environment(fixed), "STEPS": str(_STEPS)}
    _called(_words(job, directory), environment, spare_count=_RANKS)
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
    return _printed(Forked(words, environment, split=True, spare_count=spare_count))


def _printed(process: Forked) -> str:
    """Waits for a process; returns its output.

    Raises:
        ChildProcessError: the program failed.
    """
    printed, errors = process.communicate(_LIMIT_S)
    if process.returncode:
        raise ChildProcessError(f"{process.args}: {errors[-2000:]}")
    return printed


def won(row: dict[str, Any]) -> float:
    """Returns the measured gain, as a fraction of the job's step."""
    steps_ms, twin_ms = np.mean(_pairs_ms(row), axis=0)
    return 1 - float(twin_ms / steps_ms)


def _pairs_ms(row: dict[str, Any]) -> list[tuple[float, float]]:
    """Returns pairs of mean steps in ms (job, twin), from pairs of turns or from rounds."""
    return row.get("turns_ms") or list(zip(row["steps_ms"], row["twin_steps_ms"], strict=True))


def error(row: dict[str, Any]) -> float:
    """Returns the difference between predicted and measured gain, in percent of the step.

    NaN if the report gave no gain.
    """
    return 100 * abs(float(np.mean(row["said"])) - won(row)) if row["said"] else float("nan")


def noise(row: dict[str, Any]) -> float:
    """Returns the standard error of the measured gain, in percent of the step.

    Without turns, the error comes from the differences between rounds; NaN if there was only one.
    """
    if "turns_ms" in row:
        steps_ms, twin_ms = np.array(row["turns_ms"]).T
        beyond_ms = twin_ms - (1 - won(row)) * steps_ms
        return float(100 * beyond_ms.std(ddof=1) / np.sqrt(len(beyond_ms)) / steps_ms.mean())
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
            f"runs whose report names the cause on its first screen ({sum(first)} of {len(first)})",
            _mean(first),
            NAMED,
        ),
        at_least(
            f"runs of healthy twins in which no cause is named ({sum(silent)} of {len(silent)})",
            _mean(silent),
            SILENT,
        ),
        at_most(
            f"mean difference of predicted and measured gain, beyond the noise ({len(said)} jobs)",
            _mean(errors),
            ERROR,
            " % of the step",
        ),
        at_most(
            "mean noise of the measured gain, as its standard error",
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
        *(f"{ms:.1f}" for ms in np.mean(_pairs_ms(row), axis=0)),
        f"{np.mean(row['said']):.1%}" if row["said"] else "-",
        f"{won(row):.1%}",
        f"{error(row):.1f}" if row["said"] else "-",
        f"{noise(row):.1f}",
    )


if __name__ == "__main__":
    sys.exit(main())
