"""Compares the reports and the CPU times of two checkouts of commprof.

    PYTHONPATH=. python benchmarks/recordings/same_reports.py OTHER_CHECKOUT RECORDING...

The two checkouts take turns to report each recording, with `--format json`, or with `--format
table` if JSON fails. A folder is one recording; with `--inside`, each file in a folder is a
recording. A CPU time is the shortest of all turns, and includes the start of Python. The exit code
is 1 if a report differs.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from dataclasses import replace
from pathlib import Path

from tabulate import tabulate

from benchmarks.judging.command_cost import CommandCost, command_cost

ROOT = Path(__file__).parents[2]
_MOST_SHOWN = 12


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path, help="the other checkout, with its modules built")
    parser.add_argument("recordings", type=Path, nargs="+")
    parser.add_argument("--turns", type=int, default=1, help="runs of each report (default: 1)")
    parser.add_argument(
        "--inside", action="store_true", help="report each file in the given folders"
    )
    args = parser.parse_args()
    given: list[Path] = [path.resolve() for path in args.recordings]
    if args.inside:
        given = [file for folder in given for file in sorted(folder.iterdir())]
    rows, differ = [], 0
    for path in given:
        other, this = [], []
        for _ in range(args.turns):
            other.append(_told(args.other.resolve(), path))
            this.append(_told(ROOT, path))
        is_same = other[0].text == this[0].text
        differ += not is_same
        if not is_same:
            lines = difflib.unified_diff(other[0].text.splitlines(), this[0].text.splitlines(), n=0)
            print(f"{path.name}:", *[line.rstrip() for line in lines][:_MOST_SHOWN], sep="\n  ")
        old_s, new_s = (min(told.cpu_s for told in each) for each in (other, this))
        memory = (max(told.memory_mb for told in each) for each in (other, this))
        rows.append(
            [path.name, "same" if is_same else "DIFFERS", old_s, new_s, old_s / new_s, *memory]
        )
    headers = ["recording", "report", "other CPU s", "this CPU s", "ratio", "other MB", "this MB"]
    print(tabulate(rows, headers, floatfmt=("", "", ".2f", ".2f", ".1f", ".0f", ".0f")))
    return 1 if differ else 0


def _told(root: Path, path: Path) -> CommandCost:
    for format in ("json", "table"):
        cost = command_cost(root, ["report", path, "--format", format], Path("/"))
        if cost.exit_code == 0:
            break
    return replace(cost, text=cost.text.replace(str(root), ""))


if __name__ == "__main__":
    sys.exit(main())
