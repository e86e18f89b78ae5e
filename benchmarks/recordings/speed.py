"""Measures processor time and memory of reports on other tools' recordings of many ranks.

    PYTHONPATH=. python benchmarks/recordings/speed.py [--inputs small large dumps trace ...]
        [--trace rank0_of_16xA100.json.gz] [--old CHECKOUT] [--turns 2] [--results FILE]

Each report is made in a new process, with ``--format json``, or as text for dumps. With ``--old``,
this checkout and another checkout take turns. Medians over the turns are printed.
"""

from __future__ import annotations

import argparse
import gzip
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from benchmarks.judging.command_cost import CommandCost, median_cost, sound_cost, written_apart
from benchmarks.judging.demands import Demand, at_most, judged
from benchmarks.judging.results_file import write_part
from benchmarks.recordings.many_ranks import TracedJob, write_dumps, write_traces

ROOT = Path(__file__).parents[2]
_AS_JSON = ("--format", "json")
_DUMPS_OF_MORE = "dumps 4096"
_MOST_GROWTH = 1.25


@dataclass(frozen=True)
class Input:
    """A recording, and the largest CPU time and memory that its report may take."""

    what: str
    #: Writes the recording at a path; returns its size in bytes.
    write: Callable[[Path], int]
    cpu_s: float
    memory_mb: float
    options: tuple[str, ...] = _AS_JSON


INPUTS = {
    "small": Input(
        "1,024 torch.profiler traces of 100 all-reduces",
        lambda path: write_traces(path, TracedJob(1024, 10, 10, 1)),
        *(4, 300),
    ),
    "large": Input(
        "256 torch.profiler traces of 5 MB",
        lambda path: write_traces(path, TracedJob(256, 10, 20, 20)),
        *(20, 250),
    ),
    "dumps": Input(
        "1,024 Flight Recorder dumps of 400 entries",
        lambda path: write_dumps(path, 1024, 400),
        *(4, 300, ()),
    ),
    _DUMPS_OF_MORE: Input(
        "4,096 Flight Recorder dumps of 400 entries",
        lambda path: write_dumps(path, 4096, 400),
        *(16, 1200, ()),
    ),
}
_TRACE = "trace"
PART = "reports"
_OF_TRACE = Input("a torch.profiler trace of 25 MB (16 A100)", lambda path: 0, 0.6, 250)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", nargs="+", choices=[*INPUTS, _TRACE], default=list(INPUTS))
    parser.add_argument(
        "--trace", type=Path, help="compressed trace of one rank of a job on 16 A100 GPUs"
    )
    parser.add_argument("--old", type=Path, help="checkout of the version to compare with")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument(
        "--place", type=Path, help="folder for the recordings, which are deleted afterwards"
    )
    parser.add_argument("--results", type=Path, help="JSON file; figures of other inputs are kept")
    args = parser.parse_args()
    names = list(dict.fromkeys([*args.inputs, *([_TRACE] if args.trace else [])]))
    if _TRACE in names and args.trace is None:
        parser.error("--inputs trace needs --trace FILE")
    trees = {"new": ROOT, **({"old": args.old.resolve()} if args.old else {})}
    figures: dict[str, Any] = {}
    for name in names:
        with tempfile.TemporaryDirectory(dir=args.place) as place:
            figures[name] = _figures(name, Path(place) / "recording", args.trace, trees, args.turns)
        print(table({name: figures[name]}), flush=True)
    write_part(args.results, PART, figures)
    print(table(figures))
    return judged(demands(figures))


def demands(figures: dict[str, Any]) -> list[Demand]:
    """Checks the memory and the CPU time of each input that was measured."""
    found = []
    for name, one in {**INPUTS, _TRACE: _OF_TRACE}.items():
        if name in figures:
            new = figures[name]["new"]
            found.append(at_most(f"{one.what}: CPU time", new["cpu_s"], one.cpu_s, " s"))
            found.append(at_most(f"{one.what}: memory", new["memory_mb"], one.memory_mb, " MB"))
    if {"dumps", _DUMPS_OF_MORE} <= figures.keys():
        growth = figures[_DUMPS_OF_MORE]["new"]["cpu_s"] / figures["dumps"]["new"]["cpu_s"] / 4
        what = "CPU time per Flight Recorder dump: with 4,096 dumps / with 1,024"
        found.append(at_most(what, growth, _MOST_GROWTH))
    return found


def table(figures: dict[str, Any]) -> str:
    """Returns a table of the figures, and of the old version's figures if there are any."""
    head = ("input", "MB read", "wall s", "CPU s", "MB", "old CPU s", "old MB", "ratio")
    rows = []
    for name, one in figures.items():
        new, old = one["new"], one.get("old")
        of_old = (
            [old["cpu_s"], old["memory_mb"], old["cpu_s"] / new["cpu_s"]] if old else [None] * 3
        )
        sizes = [one["size_bytes"] / 1e6, new["wall_s"], new["cpu_s"], new["memory_mb"]]
        rows.append([name, *sizes, *of_old])
    return tabulate(rows, head, floatfmt=".2f")


def _figures(
    name: str, path: Path, trace: Path, trees: dict[str, Path], turns: int
) -> dict[str, Any]:
    one = INPUTS.get(name, _OF_TRACE)
    if name == _TRACE:
        path = path.with_suffix(".json")
        size_bytes = path.write_bytes(gzip.decompress(trace.read_bytes()))
    else:
        size_bytes = written_apart(lambda: one.write(path))
    costs: dict[str, list[CommandCost]] = {tree: [] for tree in trees}
    for _ in range(turns):
        for tree, directory in trees.items():
            costs[tree].append(sound_cost(directory, ["report", path, *one.options], path.parent))
    return {"size_bytes": size_bytes} | {
        tree: _figures_of(median_cost(found)) for tree, found in costs.items()
    }


def _figures_of(cost: CommandCost) -> dict[str, float]:
    return {
        "wall_s": round(cost.wall_s, 3),
        "cpu_s": round(cost.cpu_s, 3),
        "memory_mb": round(cost.memory_mb, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
