"""A table of a run as CSV (RFC 4180, but with newlines as line ends)."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

from commprof.report.export.rows import rows
from commprof.report.full_report import FullReport
from commprof.report.plain_text import printable
from commprof.trials.result import TrialResult

#: What a spreadsheet takes for a formula.
_FORMULA = ("=", "+", "-", "@")


def render(report: FullReport, table: str, trial: TrialResult | None = None) -> str:
    """With a line of column names; figures that do not exist are empty. No rows: no text.

    Raises:
        UsageError: see ``rows``.
    """
    found = rows(report, table, trial)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in found[:1]:
        writer.writerow(row)
    writer.writerows([_cell(value) for value in row.values()] for row in found)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return ""
    if isinstance(value, str):
        value = printable(value)
        return f"'{value}" if value.startswith(_FORMULA) else value
    return value
