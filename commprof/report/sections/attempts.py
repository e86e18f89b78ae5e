"""Table of the attempts of a job that was restarted."""

from __future__ import annotations

from collections.abc import Sequence

from commprof.analysis.late.attempts import Attempt
from commprof.report.tabulated import Grid, three_digits
from commprof.text import printable

LEGEND = """\
steps: steps that all ranks of the attempt completed. lost: time from the end of the last of these
steps to the start of the first step of the next attempt with steps."""

_HEADERS = ("ranks", "attempt", "traces", "steps", "lasted s", "lost s", "ended")


def attempts_grid(attempts: Sequence[Attempt]) -> Grid:
    """Makes a table with a row per attempt."""
    rows = [
        (
            each.world_size,
            each.number,
            each.ranks,
            each.steps,
            three_digits(each.duration_s),
            three_digits(each.lost_s),
            printable(each.ending) or "-",
        )
        for each in attempts
    ]
    return Grid(rows, _HEADERS, left=(len(_HEADERS) - 1,))
