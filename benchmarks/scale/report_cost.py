"""Measures CPU time and memory of reports of many ranks, for this version and an older one.

    git worktree add ../old 8668001c && cp commprof/*.so ../old/commprof
    PYTHONPATH=. python benchmarks/scale/report_cost.py --old ../old [--rows 1024x600 ...]
        [--results FILE]

For each row of the table, ``runs.py`` writes runs, and both versions execute a command on these
runs in turns. Each execution is a process of its own. A row shows medians of wall time, CPU time
(user and system) and largest resident set. CPU time and memory have limits. Without ``--old`` only
this version is measured.

The rows "8 ranks" to "4096 ranks" show how the cost grows with the number of ranks. Between any two
of these rows, the CPU time per collective may differ by a factor of at most 2.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tabulate import tabulate

from benchmarks.judging.command_cost import CommandCost, median_cost, sound_cost, written_apart
from benchmarks.judging.demands import Demand, at_most, judged
from benchmarks.judging.results_file import write_part
from benchmarks.scale.runs import write_run

ROOT = Path(__file__).parents[2]
_CALLS = 25


@dataclass(frozen=True)
class Row:
    """A command that reads runs, and limits on the command's CPU time and memory."""

    what: str
    ranks: int
    steps: int
    command: tuple[str, ...]
    cpu_s: float
    memory_mb: float
    plain: bool = False
    per_host: int = 8
    #: True for the rows whose CPU times per collective are compared with each other.
    growth: bool = False
    runs: int = 1

    @property
    def collectives(self) -> int:
        """Number of calls of all ranks in all runs."""
        return self.ranks * self.steps * _CALLS * self.runs


_JSON = ("report", "--format", "json")
ROWS = {
    "1024x600": Row(
        "report of 1,024 ranks with 600 collectives",
        1024,
        24,
        _JSON,
        3,
        250,
        plain=True,
        per_host=0,
    ),
    "1024x2500": Row(
        "report of 1,024 ranks with 100 steps of 25 buckets", 1024, 100, _JSON, 12, 400
    ),
    "8x75000": Row(
        "report of 8 ranks with 75,000 collectives",
        8,
        3000,
        _JSON,
        1.5,
        200,
        plain=True,
        per_host=0,
    ),
    "8x1250000": Row(
        "report of 8 ranks with 1,250,000 collectives",
        8,
        50_000,
        _JSON,
        25,
        500,
        plain=True,
        per_host=0,
    ),
    "compare 512": Row(
        "compare of two runs of 512 ranks with 100 steps of 25 buckets",
        512,
        100,
        ("compare",),
        8,
        400,
        runs=2,
    ),
    "fit 1024": Row(
        "fit of 1,024 ranks with 100 steps of 25 buckets",
        1024,
        100,
        ("fit", "--output", "profile.json"),
        3,
        300,
    ),
    "page 256": Row(
        "HTML page of 256 ranks with 20 steps of 25 buckets",
        256,
        20,
        ("report", "--format", "html", "--force"),
        1.2,
        400,
    ),
    "8 ranks": Row("8 ranks", 8, 4096, _JSON, 99, 9999, growth=True),
    "64 ranks": Row("64 ranks", 64, 512, _JSON, 99, 9999, growth=True),
    "512 ranks": Row("512 ranks", 512, 64, _JSON, 99, 9999, growth=True),
    "4096 ranks": Row("4,096 ranks", 4096, 8, _JSON, 99, 9999, growth=True),
}
_MOST_GROWTH = 2.0
PART = "reports"
_HEAD = (
    *("row", "wall s", "CPU s", "most", "MB", "most", "us a collective"),
    *("old CPU s", "ratio", "old MB"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", type=Path, help="checkout of the version to compare with")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument(
        "--place", type=Path, help="folder for the traces, which are deleted afterwards"
    )
    parser.add_argument(
        "--results", type=Path, help="JSON file to update; rows that are not measured stay"
    )
    args = parser.parse_args()
    trees = {"new": ROOT, **({"old": args.old.resolve()} if args.old else {})}
    figures: dict[str, dict[str, CommandCost]] = {}
    for name in args.rows:
        row = ROWS[name]
        with tempfile.TemporaryDirectory(dir=args.place) as place:
            folders = _written(row, Path(place))
            costs: dict[str, list[CommandCost]] = {tree: [] for tree in trees}
            for _ in range(args.turns):
                for tree, directory in trees.items():
                    costs[tree].append(_cost(row, folders, directory))
        figures[name] = {tree: median_cost(found) for tree, found in costs.items()}
        print(table({name: figures[name]}), flush=True)
        write_part(args.results, PART, {name: _plain(figures[name])})
    print(table(figures))
    return judged(demands({name: _plain(costs) for name, costs in figures.items()}))


def _plain(costs: dict[str, CommandCost]) -> dict[str, dict[str, float]]:
    return {
        tree: {"wall_s": cost.wall_s, "cpu_s": cost.cpu_s, "memory_mb": cost.memory_mb}
        for tree, cost in costs.items()
    }


def table(figures: dict[str, dict[str, CommandCost]]) -> str:
    """Returns a table of the figures, with those of the older version if it was measured."""
    lines = []
    for name, costs in figures.items():
        row, new, old = ROWS[name], costs["new"], costs.get("old")
        of_old = [None] * 3 if old is None else [old.cpu_s, old.cpu_s / new.cpu_s, old.memory_mb]
        most = [None] * 2 if row.growth else [row.cpu_s, row.memory_mb]
        each_us = 1e6 * new.cpu_s / row.collectives
        figures_ = new.wall_s, new.cpu_s, most[0], new.memory_mb, most[1], each_us
        lines.append([name, *figures_, *of_old])
    return tabulate(lines, _HEAD, floatfmt=".2f")


def demands(figures: dict[str, dict[str, dict[str, float]]]) -> list[Demand]:
    """Checks the limits on memory and CPU time of the measured rows.

    CPU time includes the start of Python.
    """
    found, growth = [], []
    for name, row in ROWS.items():
        if name not in figures:
            continue
        new = figures[name]["new"]
        if row.growth:
            growth.append(new["cpu_s"] / row.collectives)
            continue
        found.append(at_most(f"{row.what}: CPU time", new["cpu_s"], row.cpu_s, " s"))
        found.append(at_most(f"{row.what}: memory", new["memory_mb"], row.memory_mb, " MB"))
    if len(growth) > 1:
        what = "CPU time of a collective at 8, 64, 512 and 4,096 ranks: largest / least"
        found.append(at_most(what, max(growth) / min(growth), _MOST_GROWTH))
    return found


def _written(row: Row, place: Path) -> list[Path]:
    folders = [place / f"run{number}" for number in range(row.runs)]
    for seed, folder in enumerate(folders):
        settings = row.ranks, row.steps, _CALLS, row.per_host, row.plain
        written_apart(partial(write_run, folder, *settings, seed=seed))
    return folders


def _cost(row: Row, folders: list[Path], tree: Path) -> CommandCost:
    name, *options = row.command
    cost = sound_cost(tree, [name, *folders, *options], folders[0].parent)
    return replace(cost, text="")  # the output is long, so it is not kept


if __name__ == "__main__":
    sys.exit(main())
