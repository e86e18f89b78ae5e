"""Sections of a page that are pictures of single steps."""

from __future__ import annotations

from collections.abc import Iterator

from commprof.report.full_report import FullReport
from commprof.report.section import Medium, Section

_TIMELINE = """\
The time of each collective on each rank. early: from this rank's issue until the last rank's issue;
queue: from then until the backend runs the collective on this rank; wait: from then until the
backend runs the collective on the last rank; transfer: from then until completion. The table of the
collectives divides this time differently: there, queue is all of the time from a rank's issue to
the start on the same rank."""


def sections(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields the sections with pictures, if a page has steps to show."""
    if medium.is_page and report.result.worlds:
        yield Section(
            "steps",
            "Step by step",
            legend="Wall time of the slowest rank. Choose a step to see it in the timeline.",
            stands_alone=False,
        )
        yield from timeline(report, medium)


def timeline(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields the section with the timeline, if a page has steps to show."""
    if medium.is_page and report.result.worlds:
        title = "Timeline of the collectives"
        yield Section("timeline", title, legend=_TIMELINE, stands_alone=False)
