"""``--price-per-hour``: the cost of a run at each world size."""

from __future__ import annotations

import argparse
import math
import textwrap

from commprof.analysis.cost import UNITS, Cost, Price
from commprof.analysis.verdict import Verdict
from commprof.commands.options.terminal import table_width
from commprof.commands.showing.opened_run import OpenedRun
from commprof.errors import UsageError


def add_price_arguments(parser: argparse._ActionsContainer) -> None:
    """Adds ``--price-per-hour`` and ``--price-per``."""
    parser.add_argument(
        "--price-per-hour",
        type=float,
        metavar="PRICE",
        help="price per hour, for a table of time and money per 1,000 samples and per epoch",
    )
    parser.add_argument(
        "--price-per", choices=UNITS, help="what PRICE pays for: a node or a rank (default: node)"
    )


def price_of(args: argparse.Namespace) -> Price | None:
    """Reads the price from the arguments; None if not given.

    Raises:
        UsageError: the price is out of range, or there is a unit without a price.
    """
    if args.price_per_hour is None:
        if args.price_per is not None:
            raise UsageError("--price-per needs --price-per-hour PRICE")
        return None
    if not (args.price_per_hour > 0 and math.isfinite(args.price_per_hour)):
        raise UsageError(
            f"--price-per-hour {args.price_per_hour} is out of range (allowed: more than 0)"
        )
    return Price(args.price_per_hour, args.price_per or "node")


def priced(run: OpenedRun, price: Price, width: int) -> tuple[Cost, str]:
    """Returns the costs of a run, and a text about these costs and the run's verdict.

    Sentences are wrapped to ``width`` characters.
    """
    from commprof.report.sections import cost as cost_table

    paid = run.cost(price)
    return paid, "\n\n".join(
        [cost_table.section(paid, width, table_width()), *_sentences(run.verdict, width)]
    )


def _sentences(found: Verdict | None, width: int) -> list[str]:
    if found is None:
        return []
    return [textwrap.fill(line, width) for line in (found.headline, *found.sentences)]
