"""Table of the attempts of a job that was restarted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commprof.analysis.late.attempts import Attempt
from commprof.report.full_report import FullReport
from commprof.report.section import Medium, Section
from commprof.report.tabulated import Grid, three_digits
from commprof.text import printable

LEGEND = """\
steps: steps that all ranks of the attempt completed. lost: time between the last completed step of
the attempt and the first step of a later attempt."""

_HEADERS = ("ranks", "attempt", "traces", "steps", "lasted s", "lost s", "ended")


def sections(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields the section on a job that was restarted."""
    if attempts := report.result.attempts:
        grids = (("The job's first start and each restart", attempts_grid(attempts)),)
        yield Section("attempts", "Attempts", grids=grids, legend=LEGEND)


def attempts_grid(attempts: Sequence[Attempt]) -> Grid:
    """Makes a table with a row per attempt."""
    rows = [
        (
            attempt.world_size,
            attempt.number,
            attempt.ranks,
            attempt.steps,
            three_digits(attempt.duration_s),
            three_digits(attempt.lost_s),
            printable(attempt.ending) or "-",
        )
        for attempt in attempts
    ]
    return Grid(rows, _HEADERS, left=(len(_HEADERS) - 1,))
