"""Renders ``commprof report`` as Markdown, HTML, CSV or Parquet.

Each renderer is imported only where it is used.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from commprof.commands.showing.opened_run import OpenedRun
from commprof.commands.showing.price import add_price_arguments, price_of
from commprof.errors import CommprofError, UsageError
from commprof.report.export.rows import CANDIDATES, TABLES, as_csv, as_parquet
from commprof.text import printable
from commprof.trace.run.run_directory import PREDICTIONS_FILE

if TYPE_CHECKING:
    from commprof.analysis.cost import Cost
    from commprof.analysis.predicted import Predictions


_ROWS = ("csv", "parquet")
_PAGES = ("html", "markdown")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds ``--rows``, ``--predictions``, and the options for the cost of a run."""
    _add_predictions(parser)
    parser.add_argument(
        "--rows",
        choices=(*TABLES, CANDIDATES),
        help="for csv and parquet: one row for each world size (worlds), rank (ranks), step of a "
        "rank (steps), kind of collective (collectives), or candidate of a trial (candidates); "
        "default: worlds, or candidates for a trial",
    )
    add_price_arguments(parser)
    parser.add_argument(
        "--epoch-samples",
        type=int,
        metavar="N",
        help="samples of all ranks in an epoch (default: the number that the built-in training "
        "loop counted)",
    )


def _add_predictions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--predictions",
        type=Path,
        metavar="FILE",
        help="for html and markdown: output of commprof predict --format json, for the scaling "
        f"curve (default: RUN/{PREDICTIONS_FILE}, which commprof predict writes)",
    )


def check(args: argparse.Namespace) -> None:
    """Refuses options that do not fit together, before the run is read.

    Raises:
        UsageError: an option is not for this format, or a value is out of range.
    """
    if args.rows is not None and args.format not in _ROWS:
        raise UsageError(f"--rows is for --format csv and parquet, not for {args.format}")
    if args.predictions is not None and args.format not in _PAGES:
        raise UsageError(f"--predictions is for --format html and markdown, not for {args.format}")
    if price_of(args) is None and args.epoch_samples is not None:
        raise UsageError("--epoch-samples needs --price-per-hour PRICE")
    if args.epoch_samples is not None and args.epoch_samples < 1:
        raise UsageError(
            f"--epoch-samples {args.epoch_samples} is out of range (allowed: 1 or more)"
        )


def cost_of(run: OpenedRun, args: argparse.Namespace) -> Cost | None:
    """Returns the cost of the run; None if no price was given.

    Raises:
        UsageError: the price is out of range, or the run holds a trial.
    """
    price = price_of(args)
    if price is None:
        return None
    return run.cost(price, math.nan if args.epoch_samples is None else float(args.epoch_samples))


def rendered(run: OpenedRun, args: argparse.Namespace) -> str | bytes:
    """Returns the report as Markdown, HTML, CSV or Parquet."""
    if run.strategies:
        return _strategies(run.strategies, args)
    report = run.report(cost_of(run, args), _predictions(args))
    if args.format == "markdown":
        from commprof.report import markdown

        return markdown.render(report, run.added)
    if args.format == "html":
        from commprof.report.html import page

        return page.render(report, run.added)
    render = as_csv if args.format == "csv" else as_parquet
    return render(report, args.rows or "", run.added)


def _strategies(runs: Sequence[OpenedRun], args: argparse.Namespace) -> str:
    from commprof.analysis.strategies import strategy_rows
    from commprof.report.full_report import ComparedStrategies

    reports = tuple(run.report(cost_of(run, args)) for run in runs)
    rows = strategy_rows([report.result for report in reports])
    if args.format == "html":
        from commprof.report.html.page import render_strategies
    else:
        from commprof.report.markdown import render_strategies
    return render_strategies(ComparedStrategies(reports, rows))


def _predictions(args: argparse.Namespace) -> Predictions | None:
    from commprof.analysis.predicted import read_predictions

    if args.predictions is not None:
        return read_predictions(args.predictions)
    found = args.run / PREDICTIONS_FILE
    if args.format not in _PAGES or not found.exists():
        return None
    try:
        predictions = read_predictions(found)
        return predictions if predictions.points else None
    except CommprofError as error:
        print(f"commprof: predictions left out: {printable(str(error))}", file=sys.stderr)
        return None
