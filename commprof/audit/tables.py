"""Reads the Markdown or CSV tables of a report, and the rows in them."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from commprof.audit.document import Row, Technique
from commprof.audit.figure import UNIT_S, StatedFigure, as_share, parse_figure
from commprof.audit.quantities import (
    COUNTS,
    Quantity,
    bare,
    classify,
    parse_ranks,
    plain,
    ranks_column,
    unambiguous,
)

_EPOCH = re.compile(r"epoch ?(\d{1,6})(?: time)?(?: ?\(?([a-zµμ]+)\)?)?")
#: Border between two cells. Markdown escapes a "|" inside a cell with a backslash.
_BORDER = re.compile(r"(?<!\\)\|")
#: Efficiencies without a unit are in percent if the largest is at least this.
_PERCENT_FROM = 20.0


@dataclass(frozen=True)
class AuditedTable:
    """A table of text cells."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    #: Line number of each row in the file.
    lines: tuple[int, ...]


def markdown_tables(lines: Sequence[str]) -> Iterator[AuditedTable]:
    """Finds every table of a Markdown text, with or without ``|`` at the ends of its lines."""
    line_number = 0
    while line_number < len(lines):
        below = lines[line_number + 1] if line_number + 1 < len(lines) else ""
        headers = _cells(lines[line_number])
        if (
            len(headers) < 2
            or "|" not in below + lines[line_number]
            or not _is_rule(below, len(headers))
        ):
            line_number += 1
            continue
        end = line_number + 2
        while end < len(lines) and len(_cells(lines[end])) >= 2:
            end += 1
        rows = [_padded(_cells(line), len(headers)) for line in lines[line_number + 2 : end]]
        yield AuditedTable(tuple(headers), tuple(rows), tuple(range(line_number + 3, end + 1)))
        line_number = end


def csv_table(text: str) -> AuditedTable | None:
    """Reads a text as a table separated by commas, semicolons or tabs; None if it is no table."""
    numbered = [
        (number, line)
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip() and not line.startswith("#")
    ]
    if len(numbered) < 2:
        return None
    numbers, lines = zip(*numbered, strict=True)
    separator = max(",;\t", key=lines[0].count)
    reader = csv.reader([f"{line}\n" for line in lines], delimiter=separator)
    rows, begins = [], []
    try:
        while True:
            begins.append(reader.line_num)
            rows.append(next(reader))
    except StopIteration:
        pass
    except csv.Error:
        return None
    width = len(rows[0])
    if width < 2:
        return None
    cells = [_padded(row, width) for row in rows[1:]]
    where = [numbers[begin] for begin in begins[1 : len(rows)]]
    return AuditedTable(tuple(rows[0]), tuple(cells), tuple(where))


def rows_of(table: AuditedTable) -> list[Row]:
    """Makes a row from each row or column of the table that belongs to a world size."""
    column = ranks_column(table.headers)
    if column is not None:
        quantities = unambiguous(
            [None if i == column else classify(h) for i, h in enumerate(table.headers)]
        )
        named = [parse_ranks(cells[column]) for cells in table.rows]
        epochs = _epochs(table.headers)
        rows = [
            replace(
                _row(ranks, quantities, cells, f"line {line}"),
                epoch_times=_epoch_times([(cells[i], f"line {line}", u) for i, u in epochs]),
            )
            for ranks, cells, line in zip(named, table.rows, table.lines, strict=True)
            if ranks
        ]
        return with_shares([row for row in rows if row.figures])
    return with_shares(_rows_of_columns(table))


def facts_of(table: AuditedTable) -> Row | None:
    """Reads a table of names and values as one row; None for other tables."""
    if len(table.headers) != 2 or ranks_column(table.headers) is not None:
        return None
    quantities = [classify(cells[0]) for cells in table.rows]
    values = [cells[1] for cells in table.rows]
    figures: dict[str, StatedFigure] = {}
    for quantity, value, line in zip(quantities, values, table.lines, strict=True):
        if quantity is not None:
            figures = {**_figures(quantity, value, f"line {line}"), **figures}
    described = {q.name: q for q in quantities if q is not None and q.name in figures}
    return Row(0, figures, described) if figures else None


def techniques_of(table: AuditedTable) -> tuple[Technique, ...]:
    """Reads a table of optimisations and their speed-ups; empty for other tables."""
    names = r"technique|optimi[sz]ation|method|compress(or|ion)"
    speedup = [i for i, h in enumerate(table.headers) if re.search(r"speed[ -]?up", plain(h))]
    if not speedup or not re.match(names, bare(table.headers[0])):
        return ()
    techniques = [
        (plain(cells[0]), parse_figure(cells[speedup[0]], f"line {line}"))
        for cells, line in zip(table.rows, table.lines, strict=True)
    ]
    return tuple(Technique(name, figure) for name, figure in techniques if figure is not None)


def _row(
    ranks: int, quantities: Sequence[Quantity | None], cells: Sequence[str], where: str
) -> Row:
    figures: dict[str, StatedFigure] = {}
    described: dict[str, Quantity] = {}
    for quantity, cell in zip(quantities, cells, strict=True):
        if quantity is None:
            continue
        for name, figure in _figures(quantity, cell, where).items():
            if name not in figures:
                figures[name] = figure
                described[name] = quantity
    return Row(ranks, figures, described)


def _epochs(names: Sequence[str]) -> list[tuple[int, str]]:
    """Returns index and unit of the names "Epoch 1 (s)", "Epoch 2 (s)", and so on.

    Empty if an epoch is missing, because the mean needs all epochs.
    """
    epochs = {}
    for column, name in enumerate(names):
        match = _EPOCH.fullmatch(plain(name))
        if match and (match[2] is None or match[2] in UNIT_S):
            epochs[int(match[1])] = column, match[2] or ""
    first = min(epochs, default=0)
    whole = first in (0, 1) and sorted(epochs) == [*range(first, first + len(epochs))]
    return [epochs[number] for number in sorted(epochs)] if whole else []


def _epoch_times(cells: Sequence[tuple[str, str, str]]) -> tuple[StatedFigure, ...]:
    figures = [parse_figure(*cell) for cell in cells]
    known_figures = tuple(figure for figure in figures if figure is not None)
    return known_figures if len(known_figures) == len(figures) else ()


def _figures(quantity: Quantity, cell: str, where: str) -> dict[str, StatedFigure]:
    """Reads the figure of a cell, and an efficiency or a speed-up in brackets after it."""
    figure = parse_figure(cell, where, quantity.unit, count=quantity.name in COUNTS)
    if figure is None:
        return {}
    figures = {quantity.name: figure}
    if quantity.name == "amdahl_speedup":
        return figures  # figures in brackets are then computed too, not measured
    for inner in re.findall(r"\(([^()]*)\)", cell):
        more = parse_figure(inner, where)
        if more is None:
            continue
        if "efficiency" in inner.lower() and more.unit == "%":
            figures.setdefault("efficiency", more)
        elif more.unit == "x":
            figures.setdefault("speedup", more)
    return figures


def _rows_of_columns(table: AuditedTable) -> list[Row]:
    """Reads a table in which each column is a world size and each row is a quantity."""
    named = [parse_ranks(header) for header in table.headers[1:]]
    if len(named) < 2 or not all(named) or all(header.isdigit() for header in table.headers[1:]):
        return []
    quantities = unambiguous([classify(cells[0]) for cells in table.rows])
    epochs = _epochs([cells[0] for cells in table.rows])
    rows = []
    for column, ranks in enumerate(named, start=1):
        figures: dict[str, StatedFigure] = {}
        for quantity, cells, line in zip(quantities, table.rows, table.lines, strict=True):
            if quantity is not None:
                figures = {**_figures(quantity, cells[column], f"line {line}"), **figures}
        described = {q.name: q for q in quantities if q is not None and q.name in figures}
        if figures and ranks:
            times = [(table.rows[i][column], f"line {table.lines[i]}", u) for i, u in epochs]
            rows.append(Row(ranks, figures, described, _epoch_times(times)))
    return rows


def with_shares(rows: list[Row]) -> list[Row]:
    """Converts efficiencies to fractions if their size shows that they are in percent."""
    stated = [
        row.figures["efficiency"].span.value
        for row in rows
        if "efficiency" in row.figures and row.figures["efficiency"].unit != "%"
    ]
    described = next(
        (r.quantities["efficiency"] for r in rows if "efficiency" in r.quantities), None
    )
    if not stated or max(stated) < _PERCENT_FROM or (described and described.unit == "%"):
        return rows
    return [
        replace(
            row,
            figures={k: as_share(f) if k == "efficiency" else f for k, f in row.figures.items()},
        )
        for row in rows
    ]


def _cells(line: str) -> list[str]:
    if "|" not in line:
        return []
    inner = line.strip().removeprefix("|").removesuffix("|")
    return [cell.replace(r"\|", "|").strip() for cell in _BORDER.split(inner)]


def _is_rule(line: str, width: int) -> bool:
    return "-" in line and set(line) <= set(" \t:|+-") and len(_cells(line)) == width


def _padded(cells: Sequence[str], width: int) -> tuple[str, ...]:
    return tuple([*cells, *[""] * width][:width])
