"""Runs a small job with each mistake of docs/causes.md, and its healthy twin, on two ranks.

    PYTHONPATH=. python benchmarks/causes/catalogue.py --results benchmarks/results/causes.jsonl

Jobs are in ``benchmarks/causes/jobs``; ``FIXED=1`` makes the twin, with the fix applied. Each round
runs the job and its twin one after the other, under `commprof run` as a user would type it. The
report of the job must name the cause, on the first screen, and that of the twin none. The step of
the twin, as a fraction of the job's, is compared with what the report said that the fix would win;
the error is in percent of the job's step. Sleeping jobs sleep where others compute; half of the
jobs compute. Jobs in the results file are not run again. The exit code is 1 if a demand is not met.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from benchmarks.judging.demands import Demand, at_least, at_most, judged
from benchmarks.judging.results_file import Lines, read_rows

JOBS_FOLDER = Path(__file__).parent / "jobs"
#: Jobs with the cause that each must be named by.
JOBS = {
    "trained_apart": "trained-apart",
    "weights_differ": "weights-differ",
    "ddp_wrong_pass": "ddp-wrong-pass",
    "ddp_every_pass": "ddp-every-pass",
    "every_pass_computing": "ddp-every-pass",
    "ddp_buffers": "ddp-buffers",
    "ddp_buffers_batch_norm": "ddp-buffers",
    "buffers_computing": "ddp-buffers",
    "ddp_unused_parameters": "ddp-unused-parameters",
    "ddp_static_graph": "ddp-static-graph",
    "ddp_frozen_gradients": "ddp-frozen-gradients",
    "ddp_small_buckets": "ddp-small-buckets",
    "small_buckets_sleeping": "ddp-small-buckets",
    "fsdp_one_unit": "fsdp-one-unit",
    "one_unit_computing": "fsdp-one-unit",
    "fsdp_small_units": "fsdp-small-units",
    "fsdp_every_pass": "fsdp-every-pass",
    "fsdp_every_pass_computing": "fsdp-every-pass",
    "fsdp_gathers_twice": "fsdp-gathers-twice",
    "scalars_one_by_one": "scalars-one-by-one",
    "scalars_gathered": "scalars-one-by-one",
    "norms_one_by_one": "scalars-one-by-one",
    "tensors_one_by_one": "tensors-one-by-one",
    "weights_averaged": "tensors-one-by-one",
    "pickled_objects": "pickled-objects",
    "objects_broadcast": "pickled-objects",
    "groups_in_turns": "groups-in-turns",
    "barrier_each_step": "barrier-each-step",
    "barrier_after_log": "barrier-each-step",
    "rank_alone": "rank-alone",
    "checkpoint_alone": "rank-alone",
    "evaluates_alone": "rank-alone",
    "garbage_in_turns": "garbage-in-turns",
    "caches_in_turns": "ranks-in-turns",
    "late_loading": "late-loading",
    "decodes_slowly": "late-loading",
    "late_embedding": "late-embedding",
    "embedding_computing": "late-embedding",
    "too_many_threads": "too-many-threads",
    "fewer_batches": "fewer-batches",
}
#: Options of `commprof run` without which a job's cause is not seen.
OPTIONS = {"weights_differ": ["--check-sync", "5"]}
#: Demands: share of causes named, of twins without a cause, and error of the gains in percent.
NAMED, SILENT, ERROR = 0.925, 0.975, 2.0
_ROUNDS = 3
_LIMIT_S = 180


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, metavar="FILE", help="file of JSON lines")
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=list(JOBS))
    args = parser.parse_args()
    lines, rows = Lines(args.results), read_rows(args.results)
    done = {row["job"] for row in rows}
    for job in args.jobs:
        if job not in done:
            rows.append(measured(job, args.rounds))
            lines.append(rows[-1])
            print(json.dumps(rows[-1]), flush=True)
    print(tabulate([_cells(row) for row in rows], _HEADERS))
    return judged(demands(rows))


def measured(job: str, rounds: int) -> dict[str, Any]:
    """Runs a job and its twin in turns; returns the causes named, and the steps."""
    runs: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for fixed in (False, True):
                runs[fixed].append(_run(job, fixed, Path(folder) / f"{number}-{fixed}"))
    steps = {fixed: float(np.median([run["step_ms"] for run in runs[fixed]])) for fixed in runs}
    gains = [gain for run in runs[False] if (gain := run["gain"]) is not None]
    return {
        "job": job,
        "cause": JOBS[job],
        "first": [run["first"] for run in runs[False]],
        "twin": [run["named"] for run in runs[True]],
        "step_ms": steps[False],
        "twin_step_ms": steps[True],
        "said": float(np.median(gains)) if gains else None,
    }


def _run(job: str, fixed: bool, directory: Path) -> dict[str, Any]:
    """Runs one job under commprof; returns what its JSON result says of causes."""
    paths = [str(JOBS_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "FIXED": str(int(fixed)), "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "commprof.run", "--nproc", "2"]
    command += [*OPTIONS.get(job, []), "--output", str(directory), str(JOBS_FOLDER / f"{job}.py")]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=_LIMIT_S)
    report = [sys.executable, "-m", "commprof", "report", str(directory), "--format", "json"]
    said = json.loads(subprocess.run(report, check=True, capture_output=True).stdout)
    figures = said["runs"][-1]["aggregated_metrics"]
    causes = {cause["id"]: cause for cause in figures["causes"]}
    saving = (causes.get(JOBS[job]) or {}).get("saving")
    return {
        "first": said["card"]["cause"],
        "named": list(causes),
        "step_ms": figures["parts"]["step_ms"],
        "gain": saving["saved"]["value"] if saving else None,
    }


def error(row: dict[str, Any]) -> float:
    """Difference of the gain that was said and the one that was measured, in percent of the step.

    NaN if none was said.
    """
    if row["said"] is None:
        return float("nan")
    return 100 * abs(row["said"] - (1 - row["twin_step_ms"] / row["step_ms"]))


def demands(rows: list[dict[str, Any]]) -> list[Demand]:
    """Demands on the jobs that were run."""
    first = [name == row["cause"] for row in rows for name in row["first"]]
    silent = [not names for row in rows for names in row["twin"]]
    errors = [value for row in rows if not np.isnan(value := error(row))]
    return [
        at_least(
            f"runs whose first screen names the cause ({sum(first)} of {len(first)})",
            float(np.mean(first)) if first else float("nan"),
            NAMED,
        ),
        at_least(
            f"runs of healthy twins without a cause ({sum(silent)} of {len(silent)})",
            float(np.mean(silent)) if silent else float("nan"),
            SILENT,
        ),
        at_most(
            f"mean difference of the gain said and measured ({len(errors)} jobs)",
            float(np.mean(errors)) if errors else float("nan"),
            ERROR,
            " % of the step",
        ),
    ]


_HEADERS = ("job", "first screens", "twins", "step ms", "twin ms", "said", "measured", "error %")


def _cells(row: dict[str, Any]) -> tuple[Any, ...]:
    won = 1 - row["twin_step_ms"] / row["step_ms"]
    right = sum(name == row["cause"] for name in row["first"])
    said = "-" if row["said"] is None else f"{row['said']:.1%}"
    return (
        row["job"],
        f"{right} of {len(row['first'])}",
        f"{sum(not names for names in row['twin'])} of {len(row['twin'])} silent",
        f"{row['step_ms']:.1f}",
        f"{row['twin_step_ms']:.1f}",
        said,
        f"{won:.1%}",
        "-" if row["said"] is None else f"{error(row):.1f}",
    )


if __name__ == "__main__":
    sys.exit(main())
