"""Measures processor time and memory of reports of many ranks, in turns with an older version.

    git worktree add ../old 8668001c && cp commprof/*.so ../old/commprof
    PYTHONPATH=. python benchmarks/scale/report_cost.py --old ../old [--rows 1024x600 ...]

Each row of the table is a run that ``runs.py`` writes, and a command on it, which both versions run
in turns, each in a process of its own. Printed are wall time, CPU time (user and system) and
largest resident set (medians over the turns) beside the most that is demanded, the ratio of CPU
times, and the CPU time of a collective. Without ``--old`` only this version is measured. Demanded
are also at most twice the CPU time of a collective at one number of ranks than at another.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from benchmarks.judging.demands import Demand, at_most, judged
from benchmarks.scale.runs import write_run

ROOT = Path(__file__).parents[2]
_CALLS = 25


@dataclass(frozen=True)
class Row:
    """A run and what is done with it; and the most CPU time and memory that it may take."""

    ranks: int
    steps: int
    command: tuple[str, ...]
    cpu_s: float
    memory_mb: float
    plain: bool = False
    per_host: int = 8
    #: True for the rows whose CPU time per collective must agree.
    growth: bool = False
    #: Runs that the command takes.
    runs: int = 1


_JSON = ("report", "--format", "json")
ROWS = {
    "1024x600": Row(1024, 24, _JSON, 3, 250, plain=True, per_host=0),
    "1024x2500": Row(1024, 100, _JSON, 12, 400),
    "8x75000": Row(8, 3000, _JSON, 1.5, 200, plain=True, per_host=0),
    "8x1250000": Row(8, 50_000, _JSON, 25, 500, plain=True, per_host=0),
    "compare 512": Row(512, 100, ("compare",), 8, 400, runs=2),
    "fit 1024": Row(1024, 100, ("fit",), 3, 300),
    "page 256": Row(256, 20, ("report", "--format", "html", "--force"), 1.2, 400),
    "8 ranks": Row(8, 4096, _JSON, 99, 9999, growth=True),
    "64 ranks": Row(64, 512, _JSON, 99, 9999, growth=True),
    "512 ranks": Row(512, 64, _JSON, 99, 9999, growth=True),
    "4096 ranks": Row(4096, 8, _JSON, 99, 9999, growth=True),
}
_MOST_GROWTH = 2.0
_HEAD = (
    *("row", "wall s", "CPU s", "most", "MB", "most", "us a collective"),
    *("old CPU s", "ratio", "old MB"),
)


@dataclass(frozen=True)
class Cost:
    """What one command took."""

    wall_s: float
    cpu_s: float
    memory_mb: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", type=Path, help="checkout of the version to compare with")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--place", type=Path, help="for the traces, which are deleted afterwards")
    args = parser.parse_args()
    trees = {"new": ROOT, **({"old": args.old} if args.old else {})}
    table, demands, growth = [], list[Demand](), dict[str, float]()
    for name in args.rows:
        row = ROWS[name]
        with tempfile.TemporaryDirectory(dir=args.place) as place:
            folders = _written(row, Path(place))
            costs: dict[str, list[Cost]] = {tree: [] for tree in trees}
            for _ in range(args.turns):
                for tree, directory in trees.items():
                    costs[tree].append(_cost(row, folders, directory))
        median = {tree: _median(found) for tree, found in costs.items()}
        new, old = median["new"], median.get("old")
        collectives = row.ranks * row.steps * _CALLS * row.runs
        each_us = 1e6 * new.cpu_s / collectives
        of_old = [None] * 3 if old is None else [old.cpu_s, old.cpu_s / new.cpu_s, old.memory_mb]
        most = [None] * 2 if row.growth else [row.cpu_s, row.memory_mb]
        line = [name, new.wall_s, new.cpu_s, most[0], new.memory_mb, most[1], each_us, *of_old]
        table.append(line)
        print(tabulate([_HEAD, line], tablefmt="plain", floatfmt=".2f"), flush=True)
        if row.growth:
            growth[name] = each_us
        else:
            demands.append(at_most(f"{name}: CPU time", new.cpu_s, row.cpu_s, " s"))
            demands.append(at_most(f"{name}: memory", new.memory_mb, row.memory_mb, " MB"))
    print(tabulate(table, _HEAD, floatfmt=".2f"))
    if len(growth) > 1:
        worst = max(growth.values()) / min(growth.values())
        demands.append(at_most("growth of the CPU time of a collective", worst, _MOST_GROWTH))
    return judged(demands)


def _written(row: Row, place: Path) -> list[Path]:
    folders = [place / f"run{number}" for number in range(row.runs)]
    for seed, folder in enumerate(folders):
        write_run(folder, row.ranks, row.steps, _CALLS, row.per_host, row.plain, seed=seed)
    return folders


def _cost(row: Row, folders: list[Path], tree: Path) -> Cost:
    """Runs the row's command with the commprof of a tree; returns what it took."""
    name, *options = row.command
    command = [sys.executable, "-m", "commprof", name, *map(str, folders), *options]
    begin_s = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os.chdir(folders[0].parent)
        home = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        os.execve(sys.executable, command, {**os.environ, **home})
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} in {tree}: exit status {status}")
    wall_s = time.perf_counter() - begin_s
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000)


def _median(costs: list[Cost]) -> Cost:
    return Cost(
        statistics.median(cost.wall_s for cost in costs),
        statistics.median(cost.cpu_s for cost in costs),
        statistics.median(cost.memory_mb for cost in costs),
    )


if __name__ == "__main__":
    sys.exit(main())
