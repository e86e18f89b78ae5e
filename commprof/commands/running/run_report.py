"""The report that ``commprof run`` prints at the end."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from commprof import invocation, satellites
from commprof.commands.options.terminal import colours, table_width
from commprof.commands.showing.opened_run import OpenedRun
from commprof.commands.showing.price import price_of, priced
from commprof.commands.showing.rendered_report import other_job_lines, shown, with_tables
from commprof.errors import CommprofError
from commprof.launch.run_files import keep_text
from commprof.report.sections.reproduce import repeating_command
from commprof.text import printable
from commprof.trace.run.run_directory import CONFIG_FILE


def show_run(
    directory: Path, json_file: Path | None, args: argparse.Namespace, width: int, failed: bool
) -> None:
    """Prints the report and writes ``result.json``, even for a run that failed."""
    try:
        run = OpenedRun(directory)
        report = shown(run)
        said = report.card(colours())
    except CommprofError as error:
        if not args.script and not failed:
            raise
        # A missing report does not change the exit code of the script or of failed ranks.
        print(f"commprof: no report: {printable(str(error))}", file=sys.stderr)
        return
    # After a failure, the whole report is printed, not only its first screen (``said``).
    everything = args.all or failed or not said
    text = with_tables(report, said, width, table_width()) if everything else said
    price, paid = price_of(args), None
    if price is not None:
        for priced_run in run.strategies or [run]:
            cost, section = priced(priced_run, price, width)
            name = f"{priced_run.directory.name}: " if run.strategies else ""
            text += f"\n{name}{section}\n"
            paid = None if run.strategies else cost
    keep_text(directory / "result.json", report.json(paid))
    print(text)
    if json_file is not None:
        keep_text(json_file, report.json(paid))
        print(f"JSON: {invocation.quoted(json_file)}")
    print(other_job_lines(directory), end="")
    print(f"Run directory: {invocation.quoted(directory)}")
    print(f"Run it again: {repeating_command(directory / CONFIG_FILE, args.nnodes)}")
    words = ("report", invocation.quoted(directory))
    print(f"Page with pictures: {invocation.command(*words, '--format', 'html')}")
    if not args.script and args.nnodes == 1:
        own = invocation.command("run", "--nproc", str(args.nproc or 2), "train.py")
        print(f"Profile your own script, for example train.py: {own}")
    print(f"See everything: {invocation.command(*words, '--all')}")
    if args.trial and not report.has_trial and not failed:
        print(
            f"commprof: no trial took place: {satellites.tune().no_trial(directory)}",
            file=sys.stderr,
        )
