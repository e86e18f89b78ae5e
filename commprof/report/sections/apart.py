"""Section on ranks that train apart: ranks that do not exchange gradients.

The section covers only world sizes for which the report has no other figures.
"""

from __future__ import annotations

from collections.abc import Iterator

from commprof.report.full_report import FullReport
from commprof.report.section import Medium, Section


def sections(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields the section on ranks that train apart, if always-on mode's summaries show any."""
    judged = {world.world_size for world in report.result.worlds}
    sentences = tuple(
        f"{summary.apart.sentence} {summary.apart.advice}".strip()
        for summary in report.result.summaries
        if summary.apart is not None and summary.world_size not in judged
    )
    if sentences:
        yield Section("apart", "Ranks that train apart", paragraphs=sentences)
