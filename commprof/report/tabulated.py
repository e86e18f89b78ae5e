"""A table as text, no wider than it must be, and the numbers in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import tabulate


class Grid(NamedTuple):
    """A table before it is drawn, as :func:`tabulated` takes it."""

    rows: Sequence[Sequence[Any]]
    #: Two lines at most, to be narrow: see :func:`one_line`.
    headers: Sequence[str]
    #: Columns that are text.
    left: Sequence[int] = ()


def one_line(header: str) -> str:
    """A header that was broken to be narrow, whole."""
    return header.replace("-\n", "").replace("\n", " ").strip()


def tabulated(
    rows: Sequence[Sequence[Any]], headers: Sequence[str], left: Sequence[int] = ()
) -> str:
    """Columns to the right, but for those whose numbers are in ``left``."""
    align = ["left" if column in left else "right" for column in range(len(headers))]
    padding, tabulate.MIN_PADDING = tabulate.MIN_PADDING, 0  # two columns a header otherwise
    try:
        return tabulate.tabulate(
            rows, headers=headers, tablefmt="simple", disable_numparse=True, colalign=align
        )
    finally:
        tabulate.MIN_PADDING = padding


def three_digits(value: float) -> str:
    """Three significant digits, or all before the point; small ones are not rounded to 0."""
    if math.isnan(value):
        return "-"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if value == 0 or abs(value) >= 0.001 else "<0.001"
