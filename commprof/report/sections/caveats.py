"""Caveats that a reader must know before relying on the figures."""

from __future__ import annotations

from collections.abc import Iterator

from commprof.analysis.scaling import RunResult
from commprof.report.full_report import FullReport
from commprof.report.section import Medium, Section
from commprof.report.sections import always_on, incidents
from commprof.text import counted

TITLE = "Caveats"


def before_figures(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields the caveats if the report is a page. A page is read from the top."""
    if medium.is_page:
        yield from _sections(report)


def at_the_end(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields the caveats on a terminal, where the end of a long report stays visible."""
    if not medium.is_page:
        yield from _sections(report)


def _sections(report: FullReport) -> Iterator[Section]:
    if sentences := caveats(report.result):
        yield Section("notes", TITLE, heading=TITLE, bullets=tuple(sentences))


def caveats(result: RunResult) -> list[str]:
    """Returns failures and caveats of a run, in sentences."""
    failures = [f"{counted(size, 'rank')}: {reason}" for size, reason in result.failures]
    shown = {world.world_size for world in result.worlds}
    # The reason of a failure already names the problems of the summary.
    told = shown | {size for size, _ in result.failures}
    return [
        *failures,
        *always_on.notes(result.summaries, shown, told),
        *result.remarks,
        *incidents.ended_changes(result.incidents),
    ]
