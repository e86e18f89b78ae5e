"""``commprof report``: show a recorded run again, without running it."""

from __future__ import annotations

import argparse
import math
import shutil
from dataclasses import replace
from pathlib import Path

from commprof.analysis.cost import UNITS, Price, cost
from commprof.analysis.full_report import FullReport
from commprof.analysis.run import analyse_in_detail
from commprof.analysis.verdict import verdict
from commprof.commands.report_file import writable_output, write_output
from commprof.errors import UsageError
from commprof.report import as_csv, as_json, as_parquet, cost_table, markdown, table
from commprof.report.html import page
from commprof.report.rows import TABLES
from commprof.trace.run_directory import other_jobs
from commprof.trace.salvage import salvage_dead

#: Formats that go into a file, and the file's name in the run directory by default.
_FILES = {"html": "report.html", "parquet": "report.parquet"}
FORMATS = ("table", "json", "markdown", "html", "csv", "parquet")


class ReportCommand:
    """See the module."""

    name = "report"
    help = "show a recorded run again"
    description = """\
Reads the traces in a run directory and shows them again, without running anything.
Works on runs that were cut short: whatever was recorded is shown.

  commprof report RUN                                   the tables that `commprof run` printed
  commprof report RUN --format html                     one page with pictures: RUN/report.html
  commprof report RUN --format markdown -o report.md    for an issue or a wiki
  commprof report RUN --format csv --rows steps         raw rows, one per rank and step
  commprof report RUN --price-per-hour 3.06             what training costs at each world size
"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        parser.add_argument("run", type=Path, metavar="RUN", help="the run directory")
        parser.add_argument("--format", choices=FORMATS, default="table", help="default: table")
        parser.add_argument(
            "-o",
            "--output",
            type=Path,
            metavar="FILE",
            help="write there (default: the terminal; html and parquet: RUN/report.html, .parquet)",
        )
        parser.add_argument("--force", action="store_true", help="overwrite FILE")
        parser.add_argument(
            "--rows",
            choices=tuple(TABLES),
            help="csv and parquet: a row per world size, rank, rank and step, or kind of "
            "collective (default: worlds)",
        )
        parser.add_argument(
            "--price-per-hour",
            type=float,
            metavar="PRICE",
            help="adds time and money per 1,000 samples and per epoch",
        )
        parser.add_argument(
            "--price-per", choices=UNITS, help="what PRICE is paid for (default: node)"
        )
        parser.add_argument(
            "--epoch-samples",
            type=int,
            metavar="N",
            help="samples in an epoch (default: what the run's own loop counted)",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Analyses and prints, or writes."""
        price = _price(args)
        if args.rows is not None and args.format not in ("csv", "parquet"):
            raise UsageError(f"--rows is for --format csv and parquet, not for {args.format}")
        output = args.output
        if output is None and args.format in _FILES:
            output = args.run / _FILES[args.format]
        if output is not None:
            writable_output(output, args.force)
        salvage_dead(args.run)
        report = _analyse(args, price)
        text = _rendered(report, args)
        if output is not None:
            write_output(output, text)
            print(f"Written: {output}")
        else:
            assert isinstance(text, str)  # what is bytes goes into a file
            print(text, end="")
        if args.format == "table" and output is None:
            for job in other_jobs(args.run):
                print(f"Another job recorded here: commprof report {job}")
        return 0


def _analyse(args: argparse.Namespace, price: Price | None) -> FullReport:
    result, details = analyse_in_detail(args.run)
    report = FullReport(result, details, verdict(result, details), None)
    if price is None:
        return report
    samples = math.nan if args.epoch_samples is None else float(args.epoch_samples)
    return replace(report, cost=cost(result.worlds, details, price, samples))


def _rendered(report: FullReport, args: argparse.Namespace) -> str | bytes:
    if args.format == "json":
        return as_json.render(report.result, report.cost)
    if args.format == "markdown":
        return markdown.render(report)
    if args.format == "html":
        return page.render(report)
    if args.format == "csv":
        return as_csv.render(report, args.rows or "worlds")
    if args.format == "parquet":
        return as_parquet.render(report, args.rows or "worlds")
    text = table.render(report.result, shutil.get_terminal_size((100, 24)).columns)
    return text + (f"\n{cost_table.section(report.cost)}\n" if report.cost is not None else "")


def _price(args: argparse.Namespace) -> Price | None:
    if args.price_per_hour is None:
        for name in ("price_per", "epoch_samples"):
            if getattr(args, name) is not None:
                option = "--" + name.replace("_", "-")
                raise UsageError(f"{option} says nothing without --price-per-hour PRICE")
        return None
    if not (args.price_per_hour > 0 and math.isfinite(args.price_per_hour)):
        raise UsageError(
            f"--price-per-hour {args.price_per_hour} is out of range (allowed: more than 0)"
        )
    if args.epoch_samples is not None and args.epoch_samples < 1:
        raise UsageError(
            f"--epoch-samples {args.epoch_samples} is out of range (allowed: 1 or more)"
        )
    return Price(args.price_per_hour, args.price_per or "node")
