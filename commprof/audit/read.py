"""Reads a report: the figures in the tables, sentences and lists of its text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from commprof.audit.document import Document, Row, Statement, join
from commprof.audit.figure import StatedFigure, parse_figure
from commprof.audit.json_rows import json_facts, json_rows, load
from commprof.audit.quantities import COUNTS, classify, hourly_price, parse_ranks
from commprof.audit.tables import (
    csv_table,
    facts_of,
    markdown_tables,
    rows_of,
    techniques_of,
)

_NUMBER = r"[~≈<>≤≥]?\s?\d[\d.,]*(?:[-–]\d[\d.,]*)?"
_FROM_TO = re.compile(
    r"(?<![\d.])(\d{1,6})\s*(?:→|->|to)\s*(\d{1,6})[ -](?:process|gpu|rank|node)", re.I
)
_SPEEDUP = re.compile(rf"({_NUMBER}\s?[x×])\W{{0,4}}(?:the )?speed-?up", re.I)
_EFFICIENCY = re.compile(rf"({_NUMBER}\s?%)\s(?:(?:parallel|scaling) )?efficiency", re.I)
_AT = re.compile(r"\bat (\d{1,6}) (?:process|gpu|rank|node)", re.I)
_AMDAHL = re.compile(rf"^\W*N\s*=\s*(\d{{1,6}})\W.{{0,20}}speed-?up\W{{0,4}}({_NUMBER})", re.I)
_PARALLEL = re.compile(r"^\W*P\s*=\s*(?:[A-Za-z ]{1,60}=\s*)?([\d.]+\s?%?)(?=$|[\s(])")
_LISTED = re.compile(r"\s*(?:[-*•+]|\d+\.)?\s*\**([A-Za-z][\w /-]{0,60}?)\**\s*:\**\s*(\S.*)")
#: Matches "5 % communication overhead", and "5 % overhead" at the beginning of a line. Overheads of
#: other kinds do not match.
_OVERHEAD = re.compile(
    rf"(?:^[\s*•+-]*({_NUMBER}\s?%)\s"
    rf"|(?:^|[\s(])({_NUMBER}\s?%)\s(?:comm(?:unication)?\.?|(?:gradient )?sync\w*)\s)overhead",
    re.I,
)
#: Quantities that a list may state for all world sizes.
_FACTS = (
    "batch",
    "rank_batch",
    "global_batch",
    "epochs",
    "parallel_share",
    "overhead",
    "accumulation",
)


def statements(lines: Sequence[str]) -> list[Statement]:
    """Finds speed-ups and efficiencies in sentences such as "1→4 processes: 3.9x speedup"."""
    statements_read = []
    for number, line in enumerate(lines, start=1):
        if "|" in line:
            continue
        where = f"line {number}"
        span, at_ranks = _FROM_TO.search(line), _AT.search(line)
        speedup, efficiency = _SPEEDUP.search(line), _EFFICIENCY.search(line)
        figures = {
            name: figure
            for name, match in (("speedup", speedup), ("efficiency", efficiency))
            if match and (figure := parse_figure(match[1], where))
        }
        if not figures or bool(span) == bool(at_ranks):
            continue
        base, ranks = (
            (int(span[1]), int(span[2])) if span else (1, int(at_ranks[1]) if at_ranks else 0)
        )
        if 0 < base < ranks:
            statements_read.append(Statement(base, ranks, figures))
    return statements_read


def amdahl_speedups(lines: Sequence[str]) -> list[tuple[int, StatedFigure]]:
    """Returns N and the speed-up of each line such as ``N=8: Speedup = 5.93x``."""
    speedups = []
    for number, line in enumerate(lines, start=1):
        match = _AMDAHL.match(line)
        figure = parse_figure(match[2], f"line {number}") if match else None
        if match and figure and int(match[1]):
            speedups.append((int(match[1]), figure))
    return speedups


def facts(lines: Sequence[str]) -> list[tuple[str, StatedFigure]]:
    """Finds the figures that the text states for all world sizes; skips tables.

    Returns each figure with the name of its quantity, for example ``batch`` or ``epochs``.
    """
    facts_read = []
    for number, line in enumerate(lines, start=1):
        if "|" in line:
            continue
        where = f"line {number}"
        share = _PARALLEL.match(line)
        if share and (figure := parse_figure(share[1], where)):
            facts_read.append(("parallel_share", figure))
        if parse_ranks(line) is None:
            facts_read += _facts_of_line(line, where)
    return facts_read


def stated_price(lines: Sequence[str]) -> tuple[StatedFigure, bool] | None:
    """Returns the first price per hour, and True if it is per rank; None without a price."""
    for number, line in enumerate(lines, start=1):
        price = hourly_price(line, f"line {number}")
        if price:
            return price
    return None


def _facts_of_line(line: str, where: str) -> list[tuple[str, StatedFigure]]:
    listed = _LISTED.fullmatch(line)
    if listed:
        quantity = classify(listed[1])
        if quantity is None or quantity.name not in _FACTS or not _is_of_all(listed[1]):
            return []
        text = listed[2].rpartition("=")[2].strip()
        figure = parse_figure(text, where, quantity.unit, quantity.name in COUNTS)
        is_share = quantity.name != "overhead" or (figure is not None and figure.unit == "%")
        return [(quantity.name, figure)] if figure and is_share else []
    match = _OVERHEAD.search(line)
    figure = parse_figure(match[1] or match[2], where) if match else None
    return [("overhead", figure)] if figure else []


def _is_of_all(key: str) -> bool:
    """False if ``key`` names an overhead that is not communication overhead."""
    text = key.lower()
    return "overhead" not in text or bool(
        re.fullmatch(
            r"(percentage |(total )?comm(unication)?\.? |gradient sync\w* |sync\w* )?overhead", text
        )
    )


#: Length of the longest line that is read.
_LINE_CHARACTERS = 2000
#: Signs as they look if UTF-8 is decoded as Windows-1252, and the right signs.
_WRONG_ENCODING = tuple((sign.encode().decode("cp1252"), sign) for sign in "→×–≈±≤")


def read_document(text: str) -> Document:
    """Reads a report: JSON, a CSV table, or Markdown with tables or blocks of JSON.

    Raises:
        ValueError: the text is not a scaling report; the message gives the reason.
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
            "there are no figures by world size: a table needs a column such as ranks, GPUs or "
            "nodes and a column such as throughput, speedup, efficiency or cost; JSON needs a "
            "key such as num_processes, world_size or gpus"
        )
    return document


def _of_json(text: str) -> Document:
    try:
        value = load(text)
    except ValueError as error:
        raise ValueError(f"it begins like JSON but is not valid: {error}") from None
    return _document([json_rows(value)], [json_facts(value)])


def _of_text(lines: Sequence[str]) -> Document:
    tables = list(markdown_tables(lines))
    if not tables:
        table = csv_table("\n".join(lines))
        tables = [table] if table else []
    # All blocks of JSON count as one table, because reports show one block per world size.
    rows = [[row for line, block in _fenced(lines) for row in _rows_of_block(line, block)]]
    rows += [rows_of(table) for table in tables]
    price = stated_price(lines)
    document = _document(rows, [facts_of(table) for table in tables], facts(lines))
    return Document(
        series=document.series,
        facts={**document.facts, **({"price": (price[0],)} if price else {})},
        price_is_per_rank=bool(price and price[1]),
        statements=tuple(statements(lines)),
        amdahl=tuple(amdahl_speedups(lines)),
        techniques=tuple(t for t in map(techniques_of, tables) if t),
    )


def _document(
    tables: Sequence[list[Row]],
    named: Sequence[Row | None],
    listed: Sequence[tuple[str, StatedFigure]] = (),
) -> Document:
    facts: dict[str, tuple[StatedFigure, ...]] = {}
    alone = [row for row in named if row is not None]
    pairs = [(name, figure) for row in alone for name, figure in row.figures.items()]
    for name, figure in [*pairs, *listed]:
        facts[name] = (*facts.get(name, ()), figure)
    return Document(series=join([*tables, *([row] for row in alone)]), facts=facts)


def _fenced(lines: Sequence[str]) -> list[tuple[int, str]]:
    """Returns the fenced blocks that begin like JSON, with the number of the first line."""
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
    """Returns the rows of a fenced block; empty if the block is not valid JSON."""
    try:
        return json_rows(load(block), f"JSON of line {line}, ")
    except ValueError:
        return []
