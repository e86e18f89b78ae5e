"""Counts the instructions that recording adds to a training step, with valgrind.

    PYTHONPATH=. python benchmarks/own_cost/instructions.py [--json FILE]

On a shared machine, the time of a step varies by several percent, but its number of instructions
hardly varies. Valgrind's callgrind counts the instructions of every thread, but not instructions of
the kernel. The figure is the median over steps of the instructions of rank 0's training thread. The
demands are overhead.py's limits on CPU time. The exit code is 1 if a demand is not met.

Valgrind supports AVX2, but not AVX-512. Each rank needs a core of its own: while a thread lacks a
core, full capture searches for a CPU quota once a second, which takes 64 thousand instructions.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tabulate import tabulate

from benchmarks.judging.demands import Demand, at_most, judged
from benchmarks.judging.results_file import read_json, write_json
from benchmarks.own_cost.overhead import (
    ALIKE,
    ASKED,
    HOOK,
    MOST_CPU,
    PLAIN,
    PROFILER,
    RANK_SCRIPT,
    RANKS,
    RECORDED,
)
from tests.support.machines.ranks import free_port, rank_env

MODES = (PLAIN, *RECORDED, HOOK, PROFILER)
#: Number of counted steps, by model. Slow models have fewer steps.
STEPS = {"small": 25, "many_buckets": 15, "medium": 9, "large": 5}
_TIMEOUT_S = 1200

#: Number of instructions of each step, by mode.
Cell = dict[str, list[int]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(ASKED), help="default: %(default)s")
    parser.add_argument(
        "--json", type=Path, help="add counts to this file; counts in the file are not repeated"
    )
    args = parser.parse_args()
    if shutil.which("valgrind") is None:
        parser.error("valgrind is not installed (Debian: apt install valgrind)")
    counts: dict[str, Cell] = {
        name: cell for name, cell in read_json(args.json).items() if name.startswith("steps_")
    }
    for size in args.models:
        for ranks in RANKS:
            cell = counts.setdefault(f"steps_{size}_{ranks}", {})
            for mode in (mode for mode in MODES if mode not in cell):
                cell[mode] = count(size, ranks, mode)
                print(f"{size}, {ranks} ranks, {mode}: {cell[mode]}", file=sys.stderr, flush=True)
                write_json(args.json, counts)
    print(table(counts))
    return judged(demands(counts))


def count(size: str, ranks: int, mode: str) -> list[int]:
    """Returns the number of instructions of rank 0's training thread in each step."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        port = free_port()
        asked = {"size": size, "mode": mode, "backend": "gloo", "steps": STEPS[size]}
        asked["directory"] = f"{place}/run"
        environment = {**os.environ, **ALIKE, "MASTER_ADDR": "localhost"}
        environment |= {"KINETO_LOG_LEVEL": "99", "PYTHONHASHSEED": "0"}
        running = [
            subprocess.Popen(
                [*_valgrind(f"{place}/counts"), str(RANK_SCRIPT), "counted", json.dumps(asked)],
                env={**environment, **rank_env(rank, ranks, port)},
                stderr=subprocess.DEVNULL,
            )
            for rank in range(ranks)
        ]
        try:
            for process in running:
                if process.wait(_TIMEOUT_S):
                    raise RuntimeError(f"{mode}: a rank ended with {process.returncode}")
        finally:
            for process in running:
                process.kill()
        return counts_in(Path(place), running[0].pid, STEPS[size])


def _valgrind(out: str) -> list[str]:
    return [
        *("valgrind", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes"),
        *("--dump-before=getpgid", f"--callgrind-out-file={out}.%p", "--quiet"),
        *(sys.executable, "-W", "ignore"),
    ]


def counts_in(directory: Path, pid: int, steps: int) -> list[int]:
    """Reads the first thread's count of each step from callgrind's files."""
    found = []
    for part in range(2, steps + 2):
        text = (directory / f"counts.{pid}.{part}-01").read_text()
        (total,) = (line for line in text.splitlines() if line.startswith("totals:"))
        found.append(int(total.split()[1]))
    return found


def table(counts: dict[str, Cell], style: str = "simple") -> str:
    """Returns a table with a row per model and number of ranks, and a column per mode."""
    rows = []
    for name, cell in counts.items():
        if PLAIN in cell:
            _, size, ranks = name.rsplit("_", 2)
            plain = statistics.median(cell[PLAIN])
            cells = [_shown(cell, mode) for mode in MODES[1:]]
            rows.append((size, ranks, f"{plain / 1e6:.2f}", *cells))
    headers = ("model", "gloo ranks", f"{PLAIN}, million", *MODES[1:])
    return tabulate(rows, headers=headers, tablefmt=style, disable_numparse=True)


def _shown(cell: Cell, mode: str) -> str:
    if mode not in cell:
        return "-"
    more = statistics.median(cell[mode]) - statistics.median(cell[PLAIN])
    return f"{ratio(cell, mode):.4f} ({more / 1e3:+.0f} thousand)"


def ratio(cell: Cell, mode: str) -> float:
    """Returns a mode's instructions divided by the instructions without commprof."""
    return statistics.median(cell[mode]) / statistics.median(cell[PLAIN])


def demands(counts: dict[str, Any]) -> list[Demand]:
    """Checks the demands on the instructions of each recording mode."""
    found = []
    for name, cell in counts.items():
        if not name.startswith("steps_") or PLAIN not in cell:
            continue
        _, size, ranks = name.rsplit("_", 2)
        where = f"step of the {size} model at {ranks} gloo rank{'s' * (ranks != '1')}"
        for mode in (mode for mode in RECORDED if mode in cell):
            what = f"{where}, {mode}: instructions / those without commprof"
            found.append(at_most(what, ratio(cell, mode), MOST_CPU[mode], form=".4f"))
    return found


if __name__ == "__main__":
    sys.exit(main())
