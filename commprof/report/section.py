"""One section of a report, and the kinds of output for which sections are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from commprof.report.tabulated import Grid

if TYPE_CHECKING:
    from commprof.report.full_report import FullReport


@dataclass(frozen=True)
class Section:
    """One section of a report: its title, and its contents in the order of the fields."""

    id: str
    title: str
    #: Main sentence.
    lead: str = ""
    #: Main figures with their names, as on the card; a terminal does not repeat them.
    facts: tuple[tuple[str, str], ...] = ()
    paragraphs: tuple[str, ...] = ()
    bullets: tuple[str, ...] = ()
    #: Caption and table.
    grids: tuple[tuple[str, Grid], ...] = ()
    #: Definitions of the terms in the tables and pictures.
    legend: str = ""
    #: Text laid out with spaces.
    preformatted: tuple[str, ...] = ()
    #: False if the section has no content without its picture.
    stands_alone: bool = True
    #: Line above the contents on a terminal, which shows no title; empty if it needs none.
    heading: str = ""
    #: True if a terminal also shows the captions of the tables.
    captioned: bool = False


@dataclass(frozen=True)
class Medium:
    """Kind of output for which a report is made: a terminal, or a page (HTML or Markdown)."""

    is_page: bool
    #: Number of characters at which a section wraps the text that it lays out itself.
    width: int
    #: Largest number of rows of a table that could have hundreds; the JSON result has all rows.
    most_rows: int


PAGE: Final = Medium(is_page=True, width=100, most_rows=24)


def terminal(width: int) -> Medium:
    """Returns a terminal on which prose has ``width`` characters."""
    return Medium(is_page=False, width=width, most_rows=12)


#: Function, one per section's module, that makes the module's part of a report. It yields one
#: section or several, or none if the run has no content for the section.
Maker = Callable[["FullReport", Medium], Iterator[Section]]
