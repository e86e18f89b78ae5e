"""Table of the cost of each world size."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator

from commprof.analysis.cost import Cost, CostRow
from commprof.report.full_report import FullReport
from commprof.report.section import Medium, Section
from commprof.report.tabulated import Grid, tabulated
from commprof.text import counted, fitted, plain_digits

LEGEND = """\
Time and money from the measured samples/s [95 % interval of the mean step]; money in the currency
of the price. cost efficiency: cost per sample of the first row divided by that of this row; above
100 % this row is cheaper."""


def sections(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields the section on what the run's samples cost, if a price was given."""
    if (cost := report.cost) is not None:
        yield Section(
            "cost",
            "Cost",
            paragraphs=tuple(best(cost)),
            grids=((heading(cost), cost_grid(cost)),),
            legend=LEGEND,
        )


def section(cost: Cost, width: int = 100, tables: int | None = None) -> str:
    """Renders heading, table, legend and the best world size.

    Args:
        cost: cost of each world size.
        width: number of characters to which prose is wrapped.
        tables: number of characters; a wider table is split. None leaves the table whole.
    """
    table = f"{heading(cost)}:\n{tabulated(*cost_grid(cost), width=tables)}"
    return "\n\n".join(
        [table, fitted(LEGEND, width), *(textwrap.fill(line, width) for line in best(cost))]
    )


def heading(cost: Cost) -> str:
    """Returns the heading of the table, with the price."""
    return f"Cost at {cost.price.per_hour:g} per hour and {cost.price.unit}"


def cost_grid(cost: Cost) -> Grid:
    """Makes a table with a row per world size.

    The table has columns for epochs if the length of an epoch is known.
    """
    epochs = any(not math.isnan(row.s_per_epoch) for row in cost.rows)
    headers = (
        "ranks",
        f"{cost.price.unit}s\npaid",
        "s per 1000\nsamples",
        "cost per\n1000 samples",
    )
    headers = (*headers, "cost\nefficiency", *(("epoch s", "cost per\nepoch") if epochs else ()))
    return Grid([_cells(row)[: len(headers)] for row in cost.rows], headers)


def best(cost: Cost) -> list[str]:
    """Names the cheapest and the fastest world size in sentences."""
    if cost.cheapest is None:
        return [
            "The cost is not known: the samples of this run were not counted on all ranks (see "
            "samples per second in docs/reading.md), or the number of nodes is not known because "
            "some ranks have no usable trace."
        ]
    cheapest = counted(cost.cheapest, "rank")
    if len(cost.rows) == 1:
        return [f"Only {cheapest} was measured, so there is no cheaper world size to name."]
    text = f"Cheapest per sample: {cheapest}"
    if cost.as_cheap:
        listed = " and ".join(map(str, cost.as_cheap))
        verb = "is" if len(cost.as_cheap) == 1 else "are"
        text += f"; {listed} {verb} not significantly more expensive"
    if cost.fastest == cost.cheapest:
        return [f"{text}. This world size is also the fastest."]
    assert cost.fastest is not None  # if samples are known, there is a fastest world size
    return [f"{text}. Fastest: {counted(cost.fastest, 'rank')}."]


def money(value: float) -> str:
    """Formats money with four significant digits, or all integer digits."""
    return "-" if math.isnan(value) else plain_digits(value, 4)


def _cells(row: CostRow) -> tuple[str, ...]:
    per_1000 = row.cost_per_1000_samples
    interval = f" [{money(per_1000.low)}, {money(per_1000.high)}]"
    return (
        str(row.world_size),
        "-" if row.billed is None else str(row.billed),
        money(row.s_per_1000_samples),
        money(per_1000.value) + ("" if math.isnan(per_1000.value) else interval),
        "-" if math.isnan(row.cost_efficiency) else f"{row.cost_efficiency:.1%}",
        money(row.s_per_epoch),
        money(row.cost_per_epoch),
    )
