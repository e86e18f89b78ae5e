"""``commprof compare``: are two results the same, but for noise?"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from commprof.commands.showing import compare_runs, compare_sweeps
from commprof.errors import UsageError
from commprof.recordings.recognise import is_recording_file

_DESCRIPTION = """\
Compares two recorded runs step by step (step time, its parts, collectives, settings), or two
results of the microbenchmark row by row: ratios, a rank test, and a verdict for scripts.

  commprof compare BEFORE AFTER                          run directories, or torch.profiler's traces
  commprof compare BEFORE.json AFTER.json --fail-above 5%    commprof microbench ... --json FILE
  commprof compare BEFORE.log AFTER.log                  outputs of nccl-tests

With --fail-above the exit code is 1 where something of the second is slower beyond noise and by
more than that, or where B, a microbenchmark's, lacks rows of A, was cut short or has wrong data;
without it the exit code is 0 whatever the figures say.
"""


class CompareCommand:
    """See the module."""

    description = _DESCRIPTION

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        parser.add_argument("first", type=Path, metavar="A", help="before")
        parser.add_argument("second", type=Path, metavar="B", help="after")
        parser.add_argument(
            "--fail-above",
            metavar="5%",
            help="exit with 1 where B is slower by more than that, beyond noise",
        )
        parser.add_argument(
            "--format", choices=("table", "json"), default="table", help="default: table"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Compares and prints."""
        limit = None if args.fail_above is None else parse_share(args.fail_above)
        paths = (args.first, args.second)
        runs = [path.is_dir() or is_recording_file(path) for path in paths]
        are_runs = any(runs)
        if not all(runs) and are_runs:
            other = paths[runs.index(False)]
            raise UsageError(
                f"{other} {'is no run directory' if other.exists() else 'does not exist'}; "
                "give two that commprof run wrote, or two JSON files of commprof microbench"
            )
        if missing := [str(path) for path in paths if not path.exists()]:
            raise UsageError(f"{missing[0]} does not exist; give two runs or two JSON files")
        both = compare_runs if are_runs else compare_sweeps
        return both.compare(args.first, args.second, limit, args.format)


def parse_share(text: str) -> float:
    """0.05 from ``5%`` or ``0.05``. Raises UsageError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text.strip())
    if match is None:
        raise UsageError(f"--fail-above {text!r} is not a share such as 5% or 0.05")
    return float(match[1]) / (100 if match[2] else 1)
