"""Export of a run as flat rows, in CSV and Parquet. Names of columns include units.

The tables are:

- ``worlds``: a row per world size.
- ``ranks``: a row per rank.
- ``steps``: a row per rank and measured step.
- ``collectives``: a row per operation, group, type, reduction and size.
- ``candidates``: a row per candidate of a trial, which compares settings.

A run with a trial has no tables ``worlds`` and ``ranks``. These tables hold means over steps, but
the steps of a trial alternate between candidates.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from commprof import invocation
from commprof.analysis.collectives.kinds import CollectiveRow, Spread
from commprof.analysis.detail import PARTS
from commprof.analysis.rank_summary import StepParts
from commprof.errors import UsageError
from commprof.text import printable

if TYPE_CHECKING:
    from commprof.report.full_report import FullReport
    from commprof.satellites import AddedReport


Row = dict[str, Any]


def rows(report: FullReport, table: str, added: AddedReport | None = None) -> list[Row]:
    """Returns the rows of a table (see ``table_names``); all rows have the same columns.

    Args:
        report: report of the run.
        table: name of the table. An empty name means ``worlds``, or the table of ``added``.
        added: report of the run's trial, if there was one.

    Raises:
        UsageError: the run has no such table.
    """
    table = table or ("worlds" if added is None else added.table_name)
    if added is None and table == CANDIDATES:
        raise UsageError(
            f"--rows {CANDIDATES} needs a run with a trial, but this run has none (allowed: "
            f"{', '.join(TABLES)})"
        )
    if added is not None and table in _MEANS:
        raise UsageError(
            f"--rows {table} holds means over steps, but candidates of a trial alternated in the "
            f"steps of this run (allowed: {', '.join(table_names(added))})"
        )
    if added is not None and table == added.table_name:
        return list(added.rows())
    return list(TABLES[table](report))


def table_names(added: AddedReport | None) -> list[str]:
    """Returns the names of the tables that ``rows`` can make of a run."""
    if added is None:
        return list(TABLES)
    return [added.table_name, *(name for name in TABLES if name not in _MEANS)]


def _worlds(report: FullReport) -> Iterator[Row]:
    result = report.result
    costs = report.cost.rows if report.cost is not None else ()
    for i, (world, scale) in enumerate(zip(result.worlds, result.scaling, strict=True)):
        row: Row = {
            "world_size": world.world_size,
            "measured_steps": world.timing.measured_steps,
            "warmup_steps": world.timing.warmup_steps,
            "samples_per_s": world.training.samples_per_s,
            "step_median_ms": world.timing.step_median_ms,
            "step_p95_ms": world.timing.step_p95_ms,
            "speedup": scale.speedup,
            "efficiency": scale.efficiency,
            "imbalance": world.imbalance,
            "average_loss": world.training.average_loss,
            **_parts(world.parts),
        }
        if costs:
            cost = costs[i]
            row |= {
                "billed": cost.billed,
                "s_per_1000_samples": cost.s_per_1000_samples,
                "cost_per_1000_samples": cost.cost_per_1000_samples.value,
                "per_1000_samples_low": cost.cost_per_1000_samples.low,
                "per_1000_samples_high": cost.cost_per_1000_samples.high,
                "s_per_epoch": cost.s_per_epoch,
                "cost_per_epoch": cost.cost_per_epoch,
                "cost_efficiency": cost.cost_efficiency,
            }
        yield row


def _ranks(report: FullReport) -> Iterator[Row]:
    for world in report.result.worlds:
        for rank in world.ranks:
            yield {
                "world_size": world.world_size,
                "rank": rank.rank,
                "host": rank.host,
                "samples": rank.samples,
                "duration_s": rank.duration_s,
                "samples_per_s": rank.samples_per_s,
                "average_loss": rank.average_loss,
                "final_loss": rank.final_loss,
                **_parts(rank.parts),
            }


def _steps(report: FullReport) -> Iterator[Row]:
    for detail in report.details:
        for row, rank in enumerate(detail.ranks):
            columns = {name: detail.parts_ms[name][row].tolist() for name in PARTS}
            for i, step in enumerate(detail.steps.tolist()):
                yield {
                    "world_size": detail.world_size,
                    "rank": rank,
                    "step": step,
                    **{f"{name}_ms": columns[name][i] for name in PARTS},
                }


def _collectives(report: FullReport) -> Iterator[Row]:
    """Yields a row per kind of collective; a recording without steps counts as a single step."""
    for world in report.result.worlds:
        for row in world.communication.collectives:
            yield {"world_size": world.world_size, "has_steps": True, **_collective(row)}
    for found in report.result.stepless:
        for row in found.rows:
            yield {"world_size": found.world_size, "has_steps": False, **_collective(row)}


def _collective(row: CollectiveRow) -> Row:
    kind, times = row.kind, row.times
    columns: Row = {
        "op": kind.op,
        "group": kind.group or None,
        "group_size": kind.group_size or None,
        "group_ranks": " ".join(map(str, kind.group_ranks)) or None,
        "dtype": kind.dtype,
        "reduce_op": kind.reduce_op,
        "smallest_bytes": kind.size_bytes[0] if kind.sizes_known else None,
        "largest_bytes": kind.size_bytes[1] if kind.sizes_known else None,
        "calls": row.calls,
        "failed": row.failed,
        "calls_per_step": row.calls_per_step,
        "total_bytes": row.total_bytes if kind.sizes_known else None,
        "phase": row.phases[0][0] if row.phases else "",
        "exposed_ms": times.exposed_ms,
        "algbw_gb_per_s": times.algbw_gb_per_s,
        "busbw_gb_per_s": times.busbw_gb_per_s,
    }
    for name in ("duration", "queue", "wait", "transfer"):
        spread: Spread = getattr(times, name)
        columns |= {f"{name}_median_ms": spread.median_ms, f"{name}_p95_ms": spread.p95_ms}
    return columns


def _parts(parts: StepParts) -> Row:
    """Returns the parts of a step as columns.

    The step time is renamed to ``mean_step_ms``. It is a mean over ranks, but ``step_median_ms``
    and ``step_p95_ms`` describe the slowest rank.
    """
    named = dataclasses.asdict(parts)
    return {"mean_step_ms": named.pop("step_ms"), **named}


CANDIDATES = "candidates"
#: Tables that hold means over steps.
_MEANS = ("worlds", "ranks")
TABLES: dict[str, Callable[[FullReport], Iterator[Row]]] = {
    "worlds": _worlds,
    "ranks": _ranks,
    "steps": _steps,
    "collectives": _collectives,
}


#: A spreadsheet interprets text as a formula if the text begins with one of these characters.
_FORMULA = ("=", "+", "-", "@")


def as_csv(report: FullReport, table: str, added: AddedReport | None = None) -> str:
    """Renders a table as CSV, with a line of column names.

    The format is that of RFC 4180, but lines end with a newline. Unknown figures are empty. The
    text is empty if there are no rows.

    Raises:
        UsageError: as for ``rows``.
    """
    return csv_of(rows(report, table, added))


def csv_of(rows: Sequence[Row]) -> str:
    """Renders rows like :func:`as_csv`; all rows have the same columns."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows[:1]:
        writer.writerow(row)
    writer.writerows([_csv_cell(value) for value in row.values()] for row in rows)
    return text.getvalue()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return ""
    if isinstance(value, str):
        value = printable(value)
        return f"'{value}" if value.startswith(_FORMULA) else value
    return value


def as_parquet(report: FullReport, table: str, added: AddedReport | None = None) -> bytes:
    """Renders a table as a Parquet file. Unknown figures are null.

    Raises:
        UsageError: pyarrow is not installed; or as for ``rows``.
    """
    return parquet_of(lambda: rows(report, table, added))


def parquet_of(make_rows: Callable[[], Sequence[Row]]) -> bytes:
    """Renders rows like :func:`as_parquet`; calls ``make_rows`` only if pyarrow is installed."""
    pyarrow, parquet = pyarrow_modules()
    known_rows = [
        {name: _parquet_cell(value) for name, value in row.items()} for row in make_rows()
    ]
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(known_rows), buffer)
    return buffer.getvalue()


def pyarrow_modules() -> tuple[Any, Any]:
    """Returns the modules pyarrow and pyarrow.parquet.

    Raises:
        UsageError: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError(
            "--format parquet needs pyarrow, which is not installed: "
            f"{invocation.pip('pyarrow')}, or use --format csv"
        ) from None
    return pyarrow, pyarrow.parquet


def _parquet_cell(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
