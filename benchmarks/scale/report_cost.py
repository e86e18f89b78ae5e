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
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from benchmarks.judging.command_cost import CommandCost, median_cost, sound_cost
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
            costs: dict[str, list[CommandCost]] = {tree: [] for tree in trees}
            for _ in range(args.turns):
                for tree, directory in trees.items():
                    costs[tree].append(_cost(row, folders, directory))
        median = {tree: median_cost(found) for tree, found in costs.items()}
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


def _cost(row: Row, folders: list[Path], tree: Path) -> CommandCost:
    """Runs the row's command with the commprof of a tree; returns what it took."""
    name, *options = row.command
    return sound_cost(tree, [name, *folders, *options], folders[0].parent)


if __name__ == "__main__":
    sys.exit(main())
