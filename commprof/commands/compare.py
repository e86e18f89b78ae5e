"""``commprof compare``: are two results the same, but for noise?"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from commprof.analysis.sweep_comparison import compare_sweeps
from commprof.analysis.sweep_file import read_sweep
from commprof.errors import UsageError
from commprof.report import sweep_comparison_table

_DESCRIPTION = """\
Compares two results row by row: the ratio of their times, a rank test, and a verdict that a
script can act on.

  commprof microbench all_reduce --nproc 2 --json A.json
  commprof microbench all_reduce --nproc 2 --json B.json
  commprof compare A.json B.json --fail-above 5%

With --fail-above the exit code is 1 where some row of B is slower than in A beyond noise and by
more than that; without it the exit code is 0 whatever the rows say.
"""


class CompareCommand:
    """See the module."""

    name = "compare"
    help = "compare two results of commprof microbench"
    description = _DESCRIPTION

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        parser.add_argument("first", type=Path, metavar="A.json", help="before")
        parser.add_argument("second", type=Path, metavar="B.json", help="after")
        parser.add_argument(
            "--fail-above",
            metavar="5%",
            help="exit with 1 where B is slower by more than that, beyond noise",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Compares and prints."""
        limit = None if args.fail_above is None else parse_share(args.fail_above)
        comparison = compare_sweeps(read_sweep(args.first), read_sweep(args.second))
        print(sweep_comparison_table.render(comparison), end="")
        if limit is None:
            return 0
        failed = comparison.slower_than(limit)
        rows = "1 row is" if len(failed) == 1 else f"{len(failed)} rows are"
        print(f"Beyond noise, {rows} slower by more than {100 * limit:.3g}%.")
        return 1 if failed else 0


def parse_share(text: str) -> float:
    """0.05 from ``5%`` or ``0.05``. Raises UsageError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text.strip())
    if match is None:
        raise UsageError(f"--fail-above {text!r} is not a share such as 5% or 0.05")
    return float(match[1]) / (100 if match[2] else 1)
