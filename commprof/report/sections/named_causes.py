"""Causes of the catalogue that a run shows, with their fixes, as text."""

from __future__ import annotations

from collections.abc import Iterator

from commprof.report.full_report import FullReport
from commprof.report.section import Medium, Section
from commprof.text import wrapped

TITLE = "What to change in the script"

LEGEND = """\
The list has the mistakes of docs/causes.md that the records show. Mistakes that make the result of
training wrong come first, then mistakes whose fix saves most. saves: fraction of the mean step
[95 % interval over the steps]; replayed: the recorded steps were replayed without the calls that
the fix removes; at most: time in these calls, if it is not known how much of this time the fix
saves. In the lines of a fix, names that begin with YOUR_ stand for names of the script."""


def sections(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields the section on the causes that the largest world size shows."""
    worlds = report.result.worlds
    causes = worlds[-1].named_causes if worlds else ()
    if not causes:
        return
    lines = []
    for number, cause in enumerate(causes, 1):
        text = f"{cause.title} ({cause.id}). {cause.told}"
        lines.append(wrapped(text, medium.width, f"{number}. ", "   "))
        lines += [f"       {line}" for line in cause.fix.splitlines() if line]
        lines.append(f"   Described in {cause.source}")
    yield Section("fixes", TITLE, heading=TITLE, preformatted=("\n".join(lines),), legend=LEGEND)
