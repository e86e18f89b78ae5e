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
    lead: str = ""
    #: Names and texts of the main figures. Only pages show them here.
    facts: tuple[tuple[str, str], ...] = ()
    paragraphs: tuple[str, ...] = ()
    bullets: tuple[str, ...] = ()
    #: Tables, each with its caption.
    grids: tuple[tuple[str, Grid], ...] = ()
    #: Definitions of the terms in the tables and pictures.
    legend: str = ""
    #: Text laid out with spaces.
    preformatted: tuple[str, ...] = ()
    #: False if the section has no content without its picture.
    stands_alone: bool = True
    #: Line above the contents on a terminal, where the title is not shown. May be empty.
    heading: str = ""
    #: True if a terminal also shows the captions of the tables.
    captioned: bool = False


@dataclass(frozen=True)
class Medium:
    """Kind of output for which a report is made: a terminal, or a page (HTML or Markdown)."""

    is_page: bool
    #: Number of characters at which preformatted text is wrapped.
    width: int
    #: Largest number of rows in a long table. The JSON result has all rows.
    most_rows: int


PAGE: Final = Medium(is_page=True, width=100, most_rows=24)


def terminal(width: int) -> Medium:
    """Returns the medium of a terminal on which prose is wrapped at ``width`` characters."""
    return Medium(is_page=False, width=width, most_rows=12)


#: A function that makes the sections of one module. It yields nothing if the run lacks the content.
Maker = Callable[["FullReport", Medium], Iterator[Section]]
