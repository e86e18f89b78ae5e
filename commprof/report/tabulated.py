"""Rendering of tables as compact text, and of the numbers in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from commprof.text import plain_digits, plural

#: Spaces between columns.
_GAP = 2


class Grid(NamedTuple):
    """The arguments of :func:`tabulated` for one table."""

    rows: Sequence[Sequence[Any]]
    #: One header per column, of at most two lines.
    headers: Sequence[str]
    #: Indices of the columns that hold text.
    left: Sequence[int] = ()


def one_line(header: str) -> str:
    """Joins the lines of a header into one line."""
    return header.replace("-\n", "").replace("\n", " ").strip()


def tabulated(
    rows: Sequence[Sequence[Any]],
    headers: Sequence[str],
    left: Sequence[int] = (),
    width: int | None = None,
) -> str:
    """Draws a table; columns are aligned right, except those in ``left``.

    Args:
        rows: cells of each row.
        headers: one header per column, of at most two lines. A header that begins with a line
            break continues the previous header.
        left: indices of the columns that hold text.
        width: number of characters at which a table is split into several tables, one below the
            other. Every table repeats the first column, and columns in ``left`` if there is room.
            None splits no table.
    """
    return "\n\n".join(
        _drawn(
            [[row[column] for column in panel] for row in rows],
            [headers[column] for column in panel],
            ["left" if column in left else "right" for column in panel],
        )
        for panel in _panels(_widths(rows, headers), headers, left, width)
    )


def _drawn(rows: Sequence[Sequence[Any]], headers: Sequence[str], align: Sequence[str]) -> str:
    import tabulate  # imported late, because the import takes 25 ms

    # With tabulate's own padding, each header would be two characters wider.
    padding, tabulate.MIN_PADDING = tabulate.MIN_PADDING, 0
    try:
        return tabulate.tabulate(
            rows, headers=headers, tablefmt="simple", disable_numparse=True, colalign=align
        )
    finally:
        tabulate.MIN_PADDING = padding


def _widths(rows: Sequence[Sequence[Any]], headers: Sequence[str]) -> list[int]:
    return [
        max(len(line) for cell in (header, *(row[i] for row in rows)) for line in _lines(cell))
        for i, header in enumerate(headers)
    ]


def _lines(cell: Any) -> list[str]:
    text = "" if cell is None else str(cell)
    return [line.strip() for line in text.splitlines()] or [""]


def _panels(
    widths: Sequence[int], headers: Sequence[str], left: Sequence[int], width: int | None
) -> list[list[int]]:
    """Divides the columns into tables; returns the column indices of each table."""
    every = [*range(len(widths))]
    if width is None or _total(widths, every) <= width:
        return [every]
    keys = _keys(widths, left, width)
    panels = [[*keys]]
    for group in _groups([column for column in every if column not in keys], headers):
        fits = _total(widths, [*keys, *group]) <= width
        for part in [group] if fits else [[column] for column in group]:
            if _total(widths, [*panels[-1], *part]) > width and len(panels[-1]) > len(keys):
                panels.append([*keys])
            panels[-1] += part
    return panels


def _keys(widths: Sequence[int], left: Sequence[int], width: int) -> list[int]:
    """Returns the indices of the columns that every part of a split table repeats."""
    keys = [0]
    for column in sorted({*left} - {0}):
        if _total(widths, [*keys, column]) <= width // 2:
            keys.append(column)
    return keys


def _groups(columns: Sequence[int], headers: Sequence[str]) -> list[list[int]]:
    """Groups columns; if a header begins with a newline, its column stays with the one before."""
    groups: list[list[int]] = []
    for column in columns:
        if headers[column].startswith("\n") and groups and groups[-1][-1] == column - 1:
            groups[-1].append(column)
        else:
            groups.append([column])
    return groups


def _total(widths: Sequence[int], columns: Sequence[int]) -> int:
    return sum(widths[column] for column in columns) + _GAP * (len(columns) - 1)


def not_shown(rows: int, noun: str, of: str = "") -> list[str]:
    """Returns a sentence about rows that a table does not show; empty if it shows all rows.

    Args:
        rows: number of rows that the table does not show; 0 or less if it shows all rows.
        noun: what a row stands for, in the singular.
        of: words after the noun, with a space before them.
    """
    if rows <= 0:
        return []
    return [f"Not shown: {rows} more {plural(rows, noun)}{of} (see the JSON result)."]


def three_digits(value: float) -> str:
    """Formats a number as ``plain_digits`` does; "<0.001" for tiny numbers, "-" for NaN."""
    if math.isnan(value):
        return "-"
    return plain_digits(value) if value == 0 or abs(value) >= 0.001 else "<0.001"


def decimals(value: float) -> str:
    """Formats a number: two decimals below 10, one below 1000, none from 1000 on; "-" for NaN."""
    if math.isnan(value):
        return "-"
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
