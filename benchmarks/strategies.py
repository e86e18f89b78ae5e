#!/usr/bin/env python3
"""Runs three workloads under ddp and fsdp at 1, 2 and 4 ranks.

The workloads are transformer, resnet50 and lora. All runs together take about four minutes on two
cores. Results are written to a JSON file as they are measured, so a second call continues where the
first was stopped. `python -m tools.make_measured` then updates the table of docs/measured.md. The
tables are printed. With --from FILE, nothing is run, and the tables of FILE are printed. The exit
code is 1 if a setting is missing, or if an operation's bytes differ from the theory or were not
compared with the theory. The libraries that lora needs are checked before anything is run or
overwritten.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.judging import results_file
from benchmarks.judging.demands import Demand, judged, of_all
from commprof.analysis.strategies import StrategyOperation, StrategyRow
from commprof.report.strategies import tables

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks/results/strategies.json"
WORLD_SIZES, STRATEGIES = (1, 2, 4), ("ddp", "fsdp")
SHARED = (
    *("--world-sizes", ",".join(map(str, WORLD_SIZES)), "--strategy", ",".join(STRATEGIES)),
    *("--overhead-steps", "0"),
)
COMMANDS = {
    "transformer": ("--workload", "transformer", "--batch-size", "4", "--steps", "16"),
    "resnet50": ("--workload", "resnet50:image=32", "--batch-size", "4", "--steps", "8"),
    "lora": ("--workload", "lora", "--batch-size", "4", "--steps", "16"),
}
#: Libraries that a workload's ranks import, beyond commprof's own requirements.
NEEDS = {"lora": ("transformers", "peft")}
CONTEXT = ("timestamp", "backend", "threads_per_rank", "description")
#: Times cannot be compared if their interquartile range is more than this fraction of the median.
BUSY = 0.15


def measure(name: str) -> dict[str, Any]:
    """Runs one command; returns its rows and the context of the run."""
    arguments = (*SHARED, *COMMANDS[name])
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "commprof.run", *arguments]
        subprocess.run(
            [*command, "--output", f"{directory}/run", "--json", f"{directory}/result.json"],
            check=True,
            env={**os.environ, "COLUMNS": "100"},
        )
        document = json.loads(Path(directory, "result.json").read_text())
    return {
        "command": " ".join(["python -m commprof.run", *arguments]),
        "context": context_of(document["results"][0]["context"]),
        "rows": document["strategies"],
        "theory": [
            {"strategy": strategy, "world_size": run["num_processes"], **check}
            for strategy, result in zip(STRATEGIES, document["results"], strict=True)
            for run in result["runs"]
            for check in run["aggregated_metrics"]["cross_checks"]
            if check["name"].startswith("theory_")
        ],
    }


def context_of(run: dict[str, Any]) -> dict[str, Any]:
    """Returns the context of the run that produced the figures, with the commit of the code."""
    return {**results_file.about(), **{key: run[key] for key in CONTEXT}}


def check_libraries(names: list[str]) -> None:
    """Exits if a library that one of these workloads needs cannot be imported."""
    for name in names:
        for library in NEEDS.get(name, ()):
            tried = subprocess.run(
                [sys.executable, "-c", f"import {library}"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
            if tried.returncode:
                reason = (tried.stderr.strip().splitlines() or ["no output"])[-1]
                sys.exit(
                    f"the workload {name} needs {library}, which {sys.executable} cannot import "
                    f"({reason}). Nothing was run or overwritten. Use a Python that has {library}, "
                    f"or run: pip install 'commprof[{name}]'"
                )


def demands(results: dict[str, Any]) -> list[Demand]:
    """Checks that every setting was run, and exchanged the theoretical bytes.

    Settings with a single rank need not exchange anything.
    """
    measured = {
        (name, row["strategy"], row["world_size"])
        for name, result in results.items()
        for row in result["rows"]
    }
    agreements: dict[tuple[str, str, int], list[bool]] = {
        setting: [] for setting in all_settings() if setting[2] > 1
    }
    for name, result in results.items():
        for check in result.get("theory", []):
            setting = (name, check["strategy"], check["world_size"])
            agreements.setdefault(setting, []).append(bool(check["agrees"]))
    agree = sum(bool(found) and all(found) for found in agreements.values())
    what = "settings whose operations all have the theoretical bytes per step"
    return [
        of_all("settings measured", len(measured), len(all_settings()), len(all_settings())),
        of_all(what, agree, len(agreements), len(agreements)),
    ]


def all_settings() -> list[tuple[str, str, int]]:
    """Returns workload, strategy and world size of all settings to measure."""
    return [(name, how, size) for name in COMMANDS for how in STRATEGIES for size in WORLD_SIZES]


def row_of(values: dict[str, Any]) -> StrategyRow:
    """Converts a row of the JSON result; null becomes NaN."""
    known = {key: float("nan") if value is None else value for key, value in values.items()}
    operations = []
    for operation in known.pop("operations"):
        own = {key: value for key, value in operation.items() if key != "overlapped"}
        operations.append(
            StrategyOperation(**{k: float("nan") if v is None else v for k, v in own.items()})
        )
    return StrategyRow(**known, operations=tuple(operations))


def shown(results: dict[str, Any]) -> str:
    """Returns the tables of every workload, as in the report."""
    parts = []
    for result in (results[name] for name in COMMANDS):
        description = textwrap.fill(result["context"]["description"], 100)
        found = tables([row_of(row) for row in result["rows"]])
        parts.append("\n\n".join([result["command"], description, *found]))
    return "\n\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE")
    parser.add_argument("--fresh", action="store_true", help="measure all settings again")
    args = parser.parse_args()
    source = args.source or RESULT
    results: dict[str, Any] = {}
    if source.exists() and not args.fresh:
        results = json.loads(source.read_text())
    if args.source is None:
        check_libraries([name for name in COMMANDS if name not in results])
        RESULT.parent.mkdir(exist_ok=True)
        for name in COMMANDS:
            if name not in results:
                results[name] = measure(name)
                RESULT.write_text(json.dumps(results, indent=1) + "\n")
    print(shown(results))
    return judged(demands(results))


if __name__ == "__main__":
    sys.exit(main())
