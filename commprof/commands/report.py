"""``commprof report``: show a recorded run again, without running it."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from commprof.commands.shown import read_shown
from commprof.trace.run_directory import other_jobs
from commprof.trace.salvage import salvage_dead


class ReportCommand:
    """See the module."""

    name = "report"
    help = "show a recorded run again"
    description = (
        "Reads the traces in a run directory and prints the report that `commprof run` printed.\n"
        "Works on runs that were cut short: whatever was recorded is shown.\n"
    )

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        parser.add_argument("run", type=Path, metavar="RUN", help="the run directory")
        parser.add_argument(
            "--format", choices=("table", "json"), default="table", help="default: table"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Analyses and prints."""
        salvage_dead(args.run)
        shown = read_shown(args.run)
        if args.format == "json":
            print(shown.json(), end="")
        else:
            print(shown.text(shutil.get_terminal_size((100, 24)).columns), end="")
            for job in other_jobs(args.run):
                print(f"Another job recorded here: commprof report {job}")
        return 0
