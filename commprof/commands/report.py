"""``commprof report``: show a recorded run again, without running it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from commprof import invocation
from commprof.commands.options.output_file import writable_output, write_output
from commprof.commands.options.reading_progress import reading_progress
from commprof.commands.options.terminal import colours, prose_width, table_width
from commprof.commands.showing import report_formats
from commprof.commands.showing.opened_run import OpenedRun
from commprof.commands.showing.rendered_report import other_job_lines, shown, with_tables
from commprof.errors import UsageError
from commprof.memory import end_without_collection, uncollected
from commprof.recordings.flight_recorder_files import is_flight_recorder
from commprof.recordings.inspector import is_inspector
from commprof.report.sections.reproduce import reproduce_line
from commprof.text import plural, printable
from commprof.trace.reader import salvage_dead
from commprof.trace.run.run_directory import (
    CONFIG_FILE,
    read_context,
    strategy_directories,
)

FORMATS = ("table", "json", "markdown", "html", "csv", "parquet")
#: Default file names of the formats that are written to a file.
_FILES = {"html": "report.html", "parquet": "report.parquet"}


class ReportCommand:
    """The command ``commprof report``."""

    description = """\
Reads the traces in a run directory and shows them again, without running anything.
Works on runs that were cut short: whatever was recorded is shown.

  commprof report RUN                                   one screen: what bounds the step
  commprof report RUN --all                             all tables too
  commprof report RUN --format html                     one page with pictures: RUN/report.html
  commprof report RUN --format markdown -o report.md    for an issue or a wiki
  commprof report RUN --format csv --rows steps         raw rows, one per rank and step
  commprof report RUN --format parquet -o TABLES        a folder of tables for DuckDB and Spark
  commprof report RUN --price-per-hour 3.06             what training costs at each world size
  commprof report DUMPS                                 a hang, from Flight Recorder dumps
  commprof report LOGS                                  who waits for whom, from NCCL Inspector
  commprof report traces.tar.gz                         a job that torch.profiler recorded
"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        parser.add_argument(
            "run",
            type=Path,
            metavar="RUN",
            help="the run directory; or traces of torch.profiler: a file, a folder or an archive",
        )
        parser.add_argument("--format", choices=FORMATS, default="table", help="default: table")
        parser.add_argument(
            "-o",
            "--output",
            type=Path,
            metavar="FILE",
            help="file to write, or - for the terminal (default: the terminal, but report.html for "
            "--format html and report.parquet for --format parquet, in RUN or, if RUN is a file, "
            "in the current directory). With --format parquet, a name that does not end in "
            ".parquet is a folder for all tables",
        )
        parser.add_argument(
            "--force",
            action="store_true",
            help="overwrite the file of -o, or the tables in the folder of -o",
        )
        parser.add_argument(
            "--all", action="store_true", help="all tables too, not only the first screen"
        )
        parser.add_argument(
            "--all-calls",
            action="store_true",
            help="for a long run (more than a million calls): compute the tables of collectives, "
            "gains and causes from all steps instead of a sample; takes half a kilobyte of "
            "memory for each call",
        )
        report_formats.add_arguments(parser)

    # Garbage collection would scan all tables many times, and would free nothing.
    @uncollected()
    def run(self, args: argparse.Namespace) -> int:
        """Analyses the run, and prints the report or writes it to a file."""
        report_formats.check(args)
        end_without_collection()
        of_other_tool = _of_other_tool(args.run)
        strategies = [] if of_other_tool is not None else _strategies_of(args)
        output = _output(args)
        if args.format == "parquet" and output is not None:
            from commprof.report.export.parquet_tables import is_folder

            if is_folder(output):
                return _write_folder(args, output, of_other_tool is None)
        if output is not None:
            # without -o, an older file of the default name is replaced
            writable_output(output, args.force or args.output is None)
        text: str | bytes
        if of_other_tool is None:
            salvage_dead(args.run)
        if of_other_tool is not None:
            text = of_other_tool(args)
        else:
            run = OpenedRun(args.run, args.all_calls, strategies)
            if args.format == "json":
                text = shown(run).json(report_formats.cost_of(run, args))
            elif args.format == "table":
                text = _tables(args, run)
            else:
                text = report_formats.rendered(run, args)
        if output is not None:
            write_output(output, text)
            print(f"Written: {invocation.quoted(output)}")
        elif isinstance(text, str):
            print(text, end="")
        else:
            sys.stdout.buffer.write(text)
        return 0


def _write_folder(args: argparse.Namespace, folder: Path, has_steps: bool) -> int:
    from commprof.report.export import parquet_tables

    if not has_steps:
        raise UsageError(
            f"{invocation.quoted(args.run)} holds no steps, and only runs with steps can be "
            "written as a folder of tables; name a -o FILE that ends in .parquet"
        )
    for option in ("rows", "price_per_hour"):
        if getattr(args, option) is not None:
            raise UsageError(
                f"--{option.replace('_', '-')} is for one table, and {invocation.quoted(folder)} "
                "is a folder of all tables; leave the option out, or name a -o FILE that ends in "
                ".parquet"
            )
    parquet_tables.check_folder(folder, args.force)
    salvage_dead(args.run)
    report = OpenedRun(args.run, all_calls=True).report()  # the tables hold every call
    counts = parquet_tables.write_tables(report, folder)
    for line in parquet_tables.unknown_lines(report):
        print(f"commprof: {printable(line)}", file=sys.stderr)
    print(f"Written: {invocation.quoted(folder)}")
    for table, rows in counts.items():
        print(f"  {table}: {rows:,} {plural(rows, 'row')}")
    return 0


def _of_other_tool(path: Path) -> Callable[[argparse.Namespace], str | bytes] | None:
    """Returns the function that reports on Flight Recorder dumps or NCCL Inspector logs.

    Returns None for other files.
    """
    if is_flight_recorder(path):
        return _hang
    return _inspector if is_inspector(path) else None


def _without_steps(args: argparse.Namespace, what: str) -> None:
    if args.price_per_hour is not None:
        raise UsageError(
            f"--price-per-hour is not for {what}, which hold no step times; give a run directory, "
            "or leave the price out"
        )
    if args.predictions is not None:
        raise UsageError(
            f"--predictions is not for {what}, which hold no step times; leave --predictions out"
        )


def _inspector(args: argparse.Namespace) -> str | bytes:
    _without_steps(args, "logs of NCCL Inspector")
    from commprof.analysis.inspector.result import inspector_result
    from commprof.report import inspector

    with reading_progress() as progress:
        result = inspector_result(args.run, progress)
    if args.format == "json":
        return inspector.document(result)
    if args.format == "markdown":
        from commprof.report.markdown import of_sections

        return of_sections(inspector.context(result), inspector.sections(result))
    if args.format == "html":
        from commprof.report.html.page import render_sections

        return render_sections(inspector.context(result), inspector.sections(result))
    if args.format in ("csv", "parquet"):
        from commprof.report.export.inspector_rows import inspector_rows
        from commprof.report.export.rows import csv_of, parquet_of

        if args.format == "csv":
            return csv_of(inspector_rows(result, args.rows or ""))
        return parquet_of(lambda: inspector_rows(result, args.rows or ""))
    return inspector.render(result, prose_width(), table_width())


def _hang(args: argparse.Namespace) -> str:
    if args.format not in ("table", "json"):
        raise UsageError(
            f"--format {args.format} is not for Flight Recorder dumps (allowed: table, json)"
        )
    _without_steps(args, "Flight Recorder dumps")
    from commprof.analysis.late.dumped_hang import diagnosis
    from commprof.report import hang_diagnosis

    found = diagnosis(args.run)
    if args.format == "json":
        return hang_diagnosis.document(found)
    return hang_diagnosis.render(found, prose_width(), table_width())


def _strategies_of(args: argparse.Namespace) -> list[Path]:
    """Returns the directories of the run's strategies; empty for a single run.

    Raises:
        UsageError: an option is only for a single run.
        CommprofError: there is no run.
    """
    places = strategy_directories(args.run)
    if not places:
        return places
    one = "" if args.format not in ("csv", "parquet") else f"--format {args.format}"
    if args.price_per_hour is not None or args.predictions is not None:
        one = "a price or a prediction"
    if one:
        raise UsageError(
            f"{invocation.quoted(args.run)} holds the runs of several strategies, but {one} needs "
            f"the run of one strategy; give {' or '.join(map(invocation.quoted, places))}"
        )
    return places


def _output(args: argparse.Namespace) -> Path | None:
    output: Path | None = args.output
    if output is None and args.format in _FILES and args.run.exists():
        output = (args.run if args.run.is_dir() else Path()) / _FILES[args.format]
    return None if output == Path("-") else output


def _tables(args: argparse.Namespace, run: OpenedRun) -> str:
    width, tables = prose_width(), table_width()
    report = shown(run)
    said = report.card(colours() and args.output is None)
    text = with_tables(report, said, width, tables) if args.all or not said else said
    cost = report_formats.cost_of(run, args)
    if cost is not None:
        from commprof.report.sections import cost as cost_table

        text += f"\n{cost_table.section(cost, width, tables)}\n"
    again = _again(args.run) if args.all or not said else ""
    return text + other_job_lines(args.run) + (f"\n{again}\n" if again else "")


def _again(run: Path) -> str:
    # If a run has several strategies, their options are saved in the parent directory.
    for directory in (run, run.parent):
        if (directory / CONFIG_FILE).exists():
            return reproduce_line(directory / CONFIG_FILE, read_context(run))
    return ""
