"""From the text of a file to what it says."""

from __future__ import annotations

from collections.abc import Sequence

from commprof.audit import prose
from commprof.audit.document import Document, Row, join
from commprof.audit.figure import Figure
from commprof.audit.json_rows import json_facts, json_rows, load
from commprof.audit.tables import (
    csv_table,
    facts_of,
    markdown_tables,
    rows_of,
    techniques_of,
)

#: No line of a report is longer; the patterns are not made for what is.
_LINE_CHARACTERS = 2000
#: UTF-8 that was once taken for Windows-1252, as happens to reports that are pasted around.
_WRONG_ENCODING = tuple((sign.encode().decode("cp1252"), sign) for sign in "→×–≈±≤")


def read_document(text: str) -> Document:
    """Reads JSON, or text with tables in Markdown and JSON in fences, or one table as CSV.

    Raises:
        ValueError: says why the text is no scaling report.
    """
    for wrong, right in _WRONG_ENCODING:
        text = text.replace(wrong, right)
    if text.lstrip()[:1] in ("{", "["):
        document = _of_json(text)
    else:
        lines = [line if len(line) <= _LINE_CHARACTERS else "" for line in text.splitlines()]
        document = _of_text(lines)
    if not any(series.rows for series in document.series) and not (
        document.statements or document.techniques or document.amdahl
    ):
        raise ValueError(
            "no figures by world size: a table needs a column such as ranks, GPUs or nodes beside "
            "one such as throughput, speedup, efficiency or cost; JSON needs num_processes or "
            "world_size"
        )
    return document


def _of_json(text: str) -> Document:
    try:
        value = load(text)
    except ValueError as error:
        raise ValueError(f"it begins like JSON but is none: {error}") from None
    return _document([json_rows(value)], [json_facts(value)])


def _of_text(lines: Sequence[str]) -> Document:
    found = list(markdown_tables(lines))
    if not found:
        table = csv_table("\n".join(lines))
        found = [table] if table else []
    # All JSON of one text is of one series: reports show the file of each world size in turn.
    rows = [[row for line, block in _fenced(lines) for row in _rows_of_block(line, block)]]
    rows += [rows_of(table) for table in found]
    price = prose.price(lines)
    document = _document(rows, [facts_of(table) for table in found], prose.facts(lines))
    return Document(
        series=document.series,
        facts={**document.facts, **({"price": (price[0],)} if price else {})},
        price_is_per_rank=bool(price and price[1]),
        statements=tuple(prose.statements(lines)),
        amdahl=tuple(prose.amdahl_speedups(lines)),
        techniques=tuple(t for t in map(techniques_of, found) if t),
    )


def _document(
    tables: Sequence[list[Row]],
    named: Sequence[Row | None],
    listed: Sequence[tuple[str, Figure]] = (),
) -> Document:
    facts: dict[str, tuple[Figure, ...]] = {}
    alone = [row for row in named if row is not None]
    pairs = [(name, figure) for row in alone for name, figure in row.figures.items()]
    for name, figure in [*pairs, *listed]:
        facts[name] = (*facts.get(name, ()), figure)
    return Document(series=join([*tables, *([row] for row in alone)]), facts=facts)


def _fenced(lines: Sequence[str]) -> list[tuple[int, str]]:
    """What stands between fences and looks like JSON, with the number of its first line."""
    blocks: list[tuple[int, str]] = []
    begin = -1
    for number, line in enumerate(lines):
        if not line.lstrip().startswith("```"):
            continue
        if begin >= 0:
            blocks.append((begin + 2, "\n".join(lines[begin + 1 : number])))
        begin = number if begin < 0 else -1
    return [(line, block) for line, block in blocks if block.lstrip()[:1] in ("{", "[")]


def _rows_of_block(line: int, block: str) -> list[Row]:
    """Rows of a block of a text; one that is no JSON may show a format, and has none."""
    try:
        return json_rows(load(block), f"JSON of line {line}, ")
    except ValueError:
        return []
