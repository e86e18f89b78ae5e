"""Puts the page together: text and tables as HTML, figures as JSON, style and scripts inline.

The page works without scripts, except for the pictures. Whatever text it shows was escaped, or is
set by the scripts as text, never as markup; a content security policy that names the hashes of our
own style and script lets nothing else run and nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.resources import files
from typing import Any

from commprof.report.document import Section, sections
from commprof.report.full_report import ComparedStrategies, FullReport
from commprof.report.html.data import MOST_BYTES, page_data
from commprof.report.plain_text import printable
from commprof.report.sections.setup import setup_text
from commprof.report.strategies.document import strategy_sections
from commprof.report.tabulated import Grid, one_line
from commprof.trials.result import TrialResult

#: In this order: later ones use what earlier ones define.
SCRIPTS = (
    *("dom.js", "tooltip.js", "worlds.js", "bars.js", "scaling.js", "trial.js", "steps.js"),
    "heatmap.js",
    *(
        "lanes.js",
        "timeline_view.js",
        "timeline_draw.js",
        "timeline_input.js",
        "timeline.js",
        "main.js",
    ),
)
STYLES = ("page.css", "charts.css")

#: Sections whose picture comes before their table.
_PICTURES = {"trial", "step", "scaling", "steps", "timeline"}
#: Least room for figures, where tables fill the page: 100s of ranks that wait for each other.
_LEAST_DATA_BYTES = MOST_BYTES // 4
_NO_SCRIPT = "Without JavaScript the pictures are missing; the text and the tables are all here."


def render(report: FullReport, trial: TrialResult | None = None) -> str:
    """The page as text, to be written as UTF-8."""
    parts = list(sections(report, trial))
    return _page(report.result.context, parts, partial(page_data, [report], trial))


def render_strategies(compared: ComparedStrategies) -> str:
    """The same for several strategies side by side."""
    context = {**compared.reports[0].result.context, "strategy": ""}
    parts = list(strategy_sections(compared))
    return _page(context, parts, partial(page_data, compared.reports, None))


def _page(context: Mapping[str, Any], parts: Sequence[Section], data: Callable[[int], str]) -> str:
    """The page; ``data`` is asked for the figures in as many bytes as the rest leaves."""
    before, after = _frame(context, parts)
    room = MOST_BYTES - len((before + after).encode())
    return before + data(max(room, _LEAST_DATA_BYTES)) + after


def _frame(context: Mapping[str, Any], parts: Sequence[Section]) -> tuple[str, str]:
    """What stands before and after the figures."""
    style = _joined(STYLES)
    script = '(() => {\n"use strict";\n' + _joined(SCRIPTS) + "})();\n"
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    title = f"commprof: {context['description']}"
    before = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{_text(title[:120])}</title>",
        f"<style>{style}</style>",
        "</head>",
        "<body>",
        *_body(context, parts),
        '<script type="application/json" id="data">',
    ]
    after = ["</script>", f"<script>{script}</script>", "</body>", "</html>", ""]
    return "\n".join(before), "\n".join(after)


def _body(context: Mapping[str, Any], parts: Sequence[Section]) -> Iterator[str]:
    yield '<a class="skip" href="#content">Skip to the report</a>'
    yield "<header>"
    yield "<h1>commprof report</h1>"
    yield f"<p>{_text(context['description'])}</p>"
    yield f'<p class="setup">{_text(setup_text(context))}</p>'
    yield f'<p class="setup"><time>{_text(context["timestamp"])}</time></p>'
    yield f'<p class="setup"><code>{_text(context.get("command", ""))}</code></p>'
    yield "</header>"
    yield '<nav aria-label="Sections"><ul>'
    yield from (f'<li><a href="#{part.id}">{_text(part.title)}</a></li>' for part in parts)
    yield "</ul></nav>"
    yield '<main id="content">'
    yield f'<noscript><p class="note">{_NO_SCRIPT}</p></noscript>'
    for part in parts:
        yield from _section(part)
    yield "</main>"
    yield '<div id="tooltip" role="status" aria-live="polite" hidden></div>'


def _section(section: Section) -> Iterator[str]:
    yield f'<section id="{section.id}" aria-labelledby="{section.id}-title">'
    yield f'<h2 id="{section.id}-title">{_text(section.title)}</h2>'
    if section.lead:
        yield f'<p class="lead">{_text(section.lead)}</p>'
    if section.facts:
        yield '<dl class="tiles">'
        for name, text in section.facts:
            yield f"<div><dt>{_text(name)}</dt><dd>{_text(text)}</dd></div>"
        yield "</dl>"
    yield from (f"<p>{_text(paragraph)}</p>" for paragraph in section.paragraphs)
    if section.id in _PICTURES:
        yield f'<div class="picture" id="{section.id}-picture"></div>'
    if section.bullets:
        yield "<ul>"
        yield from (f"<li>{_text(bullet)}</li>" for bullet in section.bullets)
        yield "</ul>"
    for caption, grid in section.grids:
        yield from _table(caption, grid)
    yield from (f"<pre>{html.escape(block)}</pre>" for block in section.preformatted)
    if section.legend:
        yield f'<p class="legend">{_text(section.legend)}</p>'
    yield "</section>"


def _table(caption: str, grid: Grid) -> Iterator[str]:
    # A scrolling box must be reachable by keyboard.
    yield f'<div class="scroll" tabindex="0" role="region" aria-label="{_text(caption)}">'
    yield f"<table><caption>{_text(caption)}</caption><thead><tr>"
    left = [" class=text" if i in grid.left else "" for i in range(len(grid.headers))]
    yield "".join(
        f'<th scope="col"{side}>{_text(one_line(header))}</th>'
        for side, header in zip(left, grid.headers, strict=True)
    )
    yield "</tr></thead><tbody>"
    for row in grid.rows:
        cells = [f"<td{side}>{_text(cell)}</td>" for side, cell in zip(left, row, strict=True)]
        cells[0] = cells[0].replace("<td", '<th scope="row"', 1).replace("</td>", "</th>")
        yield "<tr>" + "".join(cells) + "</tr>"
    yield "</tbody></table></div>"


def _text(text: object) -> str:
    return html.escape(printable(str(text)))


def _joined(names: tuple[str, ...]) -> str:
    package = files("commprof.report.html")
    return "".join(package.joinpath(name).read_text(encoding="utf-8") for name in names)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
