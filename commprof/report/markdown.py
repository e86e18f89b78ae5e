"""Report of a run as Markdown for GitHub and GitLab."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from commprof.report.full_report import ComparedStrategies, FullReport
from commprof.report.section import PAGE, Section
from commprof.report.sections.order import sections
from commprof.report.sections.setup import setup_text
from commprof.report.strategies import strategy_sections
from commprof.report.tabulated import Grid, one_line
from commprof.satellites import AddedReport
from commprof.text import printable

#: Characters that Markdown or HTML would interpret as markup.
_SPECIAL = re.compile(r"[\\`*_{}\[\]<>#|~!&$@]|(?<=\w)://|www\.")
#: GitHub and GitLab would make links from these parts of a text. The replacements prevent links.
_LINKS = {"://": ":&#47;&#47;", "www.": "www&#46;"}


def render(report: FullReport, added: AddedReport | None = None) -> str:
    """Renders the whole report as Markdown."""
    return _page(report.result.context, sections(report, PAGE, added))


def render_strategies(compared: ComparedStrategies) -> str:
    """Renders a comparison of strategies as Markdown."""
    context = {**compared.reports[0].result.context, "strategy": ""}
    return _page(context, strategy_sections(compared))


def of_sections(context: Mapping[str, Any], parts: Iterable[Section]) -> str:
    """Renders the sections of a recording without steps; ``context`` gives the page's head."""
    return _page(context, parts)


def _page(context: Mapping[str, Any], parts: Iterable[Section]) -> str:
    about = (context["description"], setup_text(context), str(context["timestamp"]))
    lines = ["# commprof report", "", "  \n".join(_line(text) for text in about if text)]
    for section in parts:
        if section.stands_alone:
            lines += ["", *_section(section)]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Puts text of unknown origin in one line, and escapes it so that it contains no markup."""
    return _SPECIAL.sub(lambda found: _harmless(found[0]), printable(text).strip())


def _line(text: str) -> str:
    """Escapes text at the start of a line, where Markdown also interprets lists and headings.

    "1." and "-" would begin a list; "-" and "=" could turn the line above into a heading.
    """
    text = re.sub(r"^(\d+)([.)])", r"\1\\\2", escaped(text))
    return re.sub(r"^([-+=])", r"\\\1", text)


def _harmless(found: str) -> str:
    if found in _LINKS:
        return _LINKS[found]
    return {"<": "&lt;", ">": "&gt;", "&": "&amp;", "@": "&#64;"}.get(found, f"\\{found}")


def _section(section: Section) -> Iterator[str]:
    yield f"## {escaped(section.title)}"
    if section.lead:
        yield from ("", f"**{escaped(section.lead)}**")
    if section.facts:
        yield ""
        yield from (f"- {escaped(name)}: **{escaped(text)}**" for name, text in section.facts)
    for paragraph in section.paragraphs:
        yield from ("", _line(paragraph))
    if section.bullets:
        yield ""
        yield from (f"- {_line(bullet)}" for bullet in section.bullets)
    for caption, grid in section.grids:
        yield from ("", f"{_line(caption)}:", "", *_table(grid))
    for block in section.preformatted:
        # Indented rather than fenced: no text can end an indented block.
        yield from ("", *(f"    {line}" for line in block.splitlines()))
    if section.legend:
        yield from ("", _line(section.legend.replace("\n", " ")))


def _table(grid: Grid) -> Iterator[str]:
    yield _row([one_line(header) for header in grid.headers])
    yield "|" + "|".join(":--" if i in grid.left else "--:" for i in range(len(grid.headers))) + "|"
    for row in grid.rows:
        yield _row([str(cell) for cell in row])


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(map(escaped, cells)) + " |"
