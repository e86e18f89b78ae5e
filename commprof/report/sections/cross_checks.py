"""Cross-checks of a run as lines and as a table."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from commprof.analysis.checks.figure_checks import CrossCheck
from commprof.analysis.world import WorldResult
from commprof.report.tabulated import Grid
from commprof.text import counted, fitted, plain_digits, printable

HEADING = """\
Cross-checks: commprof's figure compared with another measurement of the same run. DDP's log holds
means over the iterations that DDP sampled (the first 10, then every 100th), warm-up included; its
exposed time includes copies. Bytes sent: payload of the collectives, compared with the bytes that
the interface counted."""


def blocks(worlds: Sequence[WorldResult], width: int) -> list[str]:
    """Renders the cross-checks of a run whose records were kept (mode ``full``)."""
    return check_blocks(
        HEADING, [(world.world_size, world.cross_checks) for world in worlds], width
    )


def check_blocks(
    heading: str, checks: Sequence[tuple[int, Sequence[CrossCheck]]], width: int
) -> list[str]:
    """Renders all checks of the last world size, and disagreeing checks of the others.

    Args:
        heading: text above the checks.
        checks: checks of each world size, in order.
        width: columns of a line.
    """
    lines = [
        textwrap.fill(printable(_line(world_size, check)), width, subsequent_indent="    ")
        for i, (world_size, found) in enumerate(checks)
        for check in found
        if i == len(checks) - 1 or check.agrees is False
    ]
    return ["\n".join([fitted(heading, width), *lines])] if lines else []


def cross_checks_grid(world: WorldResult) -> Grid:
    """Makes a table with a row per check of one world size."""
    rows = [
        (
            printable(check.what),
            "-" if math.isnan(check.ours) else _number(check.ours),
            "-" if math.isnan(check.other) else _number(check.other),
            check.unit,
            check.percent or "-",
            {True: "agrees", False: "DISAGREES", None: "-"}[check.agrees],
            printable(check.note),
        )
        for check in world.cross_checks
    ]
    headers = ("figure", "commprof", "the other", "unit", "difference", "verdict", "note")
    return Grid(rows, headers, (0, 3, 5, 6))


def _line(world_size: int, check: CrossCheck) -> str:
    ranks = counted(world_size, "rank")
    note = f"; {check.note}" if check.note else ""
    if math.isnan(check.other) or math.isnan(check.ours):
        return f"  {ranks}, {check.what}: not available{note}"
    verdict = {True: "agrees", False: "DISAGREES", None: ""}[check.agrees]
    remarks = ", ".join(filter(None, (check.percent, verdict)))
    difference = f" ({remarks})" if remarks else ""
    return (
        f"  {ranks}, {check.what}: {_number(check.ours)} and {_number(check.other)} "
        f"{check.unit}{difference}{note}"
    )


def _number(value: float) -> str:
    return plain_digits(value, 4)
