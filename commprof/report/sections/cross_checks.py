"""Cross-checks of a run as lines and as a table."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence

from commprof.analysis.checks.figure_checks import CrossCheck
from commprof.analysis.world import WorldResult
from commprof.report.full_report import FullReport
from commprof.report.section import Medium, Section
from commprof.report.tabulated import Grid
from commprof.text import counted, fitted, plain_digits, printable

TITLE = "Cross-checks"

HEADING = """\
Cross-checks: commprof's figure compared with another measurement of the same run. DDP's log holds
means over the iterations that DDP sampled (the first 10, then every 100th), warm-up included; its
exposed time includes copies. Bytes sent: payload of the collectives, compared with the bytes that
the interface counted."""


def sections(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields the section on the cross-checks of a run in mode ``full``."""
    worlds = report.result.worlds
    if not medium.is_page:
        checks = [(world.world_size, world.cross_checks) for world in worlds]
        yield from as_lines("checks", HEADING, checks, medium)
    elif worlds and worlds[-1].cross_checks:
        caption = counted(worlds[-1].world_size, "rank")
        grids = ((caption, cross_checks_grid(worlds[-1])),)
        yield Section("checks", TITLE, grids=grids, legend=HEADING)


def as_lines(
    place: str, heading: str, checks: Sequence[tuple[int, Sequence[CrossCheck]]], medium: Medium
) -> Iterator[Section]:
    """Yields a section with a line per check, if there are any checks.

    Checks of the last world size are all shown. Checks of other world sizes are shown only if they
    disagree.

    Args:
        place: the section's id.
        heading: text above the checks.
        checks: checks of each world size, in order.
        medium: kind of output for which the section is made.
    """
    lines = [
        textwrap.fill(printable(_line(world_size, check)), medium.width, subsequent_indent="    ")
        for i, (world_size, of_size) in enumerate(checks)
        for check in of_size
        if i == len(checks) - 1 or check.agrees is False
    ]
    if not lines:
        return
    if medium.is_page:
        yield Section(place, TITLE, preformatted=("\n".join(lines),), legend=heading)
    else:
        text = "\n".join([fitted(heading, medium.width), *lines])
        yield Section(place, TITLE, preformatted=(text,))


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
