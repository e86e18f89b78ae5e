"""Report of a run as text for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from commprof.analysis.scaling import RunResult
from commprof.analysis.verdict import Verdict
from commprof.report.full_report import FullReport
from commprof.report.section import Section, terminal
from commprof.report.sections import incidents
from commprof.report.sections.caveats import caveats
from commprof.report.sections.order import sections
from commprof.report.sections.setup import setup_text
from commprof.report.tabulated import tabulated
from commprof.satellites import AddedReport
from commprof.text import fitted, wrapped


def render(
    result: RunResult, width: int, verdict: Verdict | None = None, tables: int | None = None
) -> str:
    """Renders the whole report.

    Args:
        result: result of the run.
        width: number of characters at which prose is wrapped.
        verdict: verdict on the run; None if the run has no figures.
        tables: width in characters at which tables are split; None splits no table.
    """
    report = FullReport(result, (), verdict, None)
    heading = (result.context["description"], setup_text(result.context))
    blocks = ["\n".join(wrapped(line, width) for line in heading)]
    for section in sections(report, terminal(width)):
        blocks += section_blocks(section, width, tables)
    return "\n\n".join(blocks) + "\n"


def render_added(
    result: RunResult, added: AddedReport, width: int, tables: int | None = None
) -> str:
    """Renders a trial's report, and the incidents of the run.

    The usual report is not shown, because its means would mix the trial's candidates.
    ``width`` and ``tables`` are as for :func:`render`.
    """
    text = added.text(result.context["description"], width, caveats(result), tables)
    blocks = [text.rstrip("\n")]
    for section in incidents.sections(FullReport(result, (), None, None), terminal(width)):
        blocks += section_blocks(section, width, tables)
    return "\n\n".join(blocks) + "\n"


def section_blocks(section: Section, width: int, tables: int | None = None) -> Iterator[str]:
    """Yields a section's blocks of text: prose, figures and legend.

    ``width`` and ``tables`` are as for :func:`render`.
    """
    if prose := [*filter(None, (section.lead, *section.paragraphs))]:
        yield "\n".join(wrapped(sentence, width) for sentence in prose)
    lines = [f"{section.heading}:"] if section.heading else []
    drawn = [
        f"{caption}:\n" * section.captioned + tabulated(*grid, width=tables)
        for caption, grid in section.grids
    ]
    lines += ["\n\n".join(drawn)] if drawn else []
    if section.grids:
        lines += [wrapped(note, tables or width) for note in section.bullets]
    else:
        lines += [wrapped(bullet, width, "* ", "  ") for bullet in section.bullets]
    lines += section.preformatted
    if lines:
        yield "\n".join(lines)
    if section.legend:
        yield fitted(section.legend, width)
