"""Builds the page: text and tables as HTML, figures as JSON, style and scripts inline.

Without scripts, the page lacks only its pictures. All text is escaped; only values of type
``Markup`` are inserted unchanged. The scripts set text as text, never as markup. A content security
policy allows only commprof's own style and script, and no access to the network.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from commprof.report.full_report import ComparedStrategies, FullReport
from commprof.report.html.data import MOST_BYTES, page_data
from commprof.report.section import PAGE, Section
from commprof.report.sections.order import sections
from commprof.report.sections.setup import setup_text
from commprof.report.strategies import strategy_sections
from commprof.report.tabulated import one_line
from commprof.satellites import AddedReport
from commprof.text import printable


def rendered(template: str, **values: Any) -> str:
    """Renders a template. ``template`` is the name of its file."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("commprof.report", "html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_shown,
    )
    made.filters |= {"digest": digest, "one_line": one_line}
    return made


def _shown(value: object) -> object:
    return value if isinstance(value, Markup) else printable(str(value))


def digest(text: str) -> str:
    """Returns the digest of a style or script, as a content security policy writes it."""
    hashed = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(hashed).decode()}"


#: Scripts in order. A later script uses definitions of earlier scripts.
SCRIPTS = (
    *("dom.js", "worlds.js", "bars.js", "scaling.js", "trial.js", "steps.js", "lanes.js"),
    *("timeline.js", "main.js"),
)

#: Ids of sections that have a picture above their table.
_PICTURES = {"trial", "step", "scaling", "steps", "timeline"}
#: The figures may always take this many bytes, even if large tables fill the page.
_LEAST_DATA_BYTES = MOST_BYTES // 4
#: Placeholder for the figures; no escaped text can contain it.
_DATA = "\0figures\0"


def render(report: FullReport, added: AddedReport | None = None) -> str:
    """Returns the HTML of the page of one run, to be written as UTF-8."""
    parts = list(sections(report, PAGE, added))
    return _page(report.result.context, parts, partial(page_data, [report], added))


def render_strategies(compared: ComparedStrategies) -> str:
    """Returns the HTML of the page that compares several strategies."""
    context = {**compared.reports[0].result.context, "strategy": ""}
    parts = list(strategy_sections(compared))
    return _page(context, parts, partial(page_data, compared.reports, None))


def render_sections(context: Mapping[str, Any], parts: Sequence[Section]) -> str:
    """Returns the HTML of the page of a recording without steps: text and tables, no pictures."""
    return _page(context, parts, partial(page_data, [], None))


def _page(context: Mapping[str, Any], parts: Sequence[Section], data: Callable[[int], str]) -> str:
    """Renders a page; ``data(n)`` returns the figures, in at most ``n`` bytes if possible."""
    style, script = Markup(_joined("page.css", "charts.css")), _joined(*SCRIPTS)
    text = rendered(
        "page.html",
        context={"command": "", **context},
        setup=setup_text(context),
        sections=parts,
        pictures=_PICTURES,
        style=style,
        script=Markup(f'(() => {{\n"use strict";\n{script}}})();\n'),
        data=Markup(_DATA),
    )
    before, after = text.split(_DATA)
    room = MOST_BYTES - len(text.encode())
    return before + data(max(room, _LEAST_DATA_BYTES)) + after


def _joined(*names: str) -> str:
    package = files("commprof.report.html")
    return "".join(package.joinpath(name).read_text(encoding="utf-8") for name in names)
