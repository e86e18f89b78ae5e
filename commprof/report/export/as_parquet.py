"""A table of a run as Parquet, through pyarrow."""

from __future__ import annotations

import io
import math
from typing import Any

from commprof import invocation
from commprof.errors import UsageError
from commprof.report.export.rows import rows
from commprof.report.full_report import FullReport
from commprof.report.plain_text import printable
from commprof.trials.result import TrialResult


def render(report: FullReport, table: str, trial: TrialResult | None = None) -> bytes:
    """The file; figures that do not exist are null.

    Raises:
        UsageError: pyarrow is not installed; or see ``rows``.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError(
            "--format parquet needs pyarrow, which is not installed: "
            f"{invocation.pip('pyarrow')}, or take --format csv"
        ) from None
    found = [
        {name: _cell(value) for name, value in row.items()} for row in rows(report, table, trial)
    ]
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(found), buffer)
    return buffer.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
