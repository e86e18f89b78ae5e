"""Makes table rows from a job's logs of NCCL Inspector. Names of columns include units."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from commprof.analysis.inspector.result import InspectorResult
from commprof.errors import UsageError
from commprof.report.export.rows import Row


def inspector_rows(result: InspectorResult, table: str) -> list[Row]:
    """Returns the rows of a table; an empty name means ``ranks``.

    Raises:
        UsageError: the logs have no such table.
    """
    table = table or "ranks"
    if table not in _TABLES:
        raise UsageError(
            f"--rows {table} needs steps, which logs of NCCL Inspector do not hold (allowed: "
            f"{', '.join(_TABLES)})"
        )
    return list(_TABLES[table](result))


def _ranks(result: InspectorResult) -> Iterator[Row]:
    late = {late.process for late in result.late}
    for row in result.process_rows:
        yield {
            "rank": row.rank,
            "host": row.process.host,
            "pid": row.process.pid,
            "time_s": row.time_s,
            "waited_s": row.waited_s,
            "caused_s": row.caused_s,
            "unsplit_s": row.unsplit_s,
            "late": row.process in late,
        }


def _collectives(result: InspectorResult) -> Iterator[Row]:
    for row in result.kinds:
        yield {
            "op": row.op,
            "group_size": row.ranks,
            "size_bytes": row.size_bytes,
            "calls": row.calls,
            "time_mean_us": row.time_us,
            "wait_mean_us": row.wait_us,
            "transfer_median_us": row.transfer_us,
            "busbw_gb_per_s": row.busbw_gb_per_s,
            "busbw_with_waiting_gb_per_s": row.busbw_with_waiting_gb_per_s,
            "algorithm": " ".join(name for name, _ in row.algorithms) or None,
        }


_TABLES: dict[str, Callable[[InspectorResult], Iterator[Row]]] = {
    "ranks": _ranks,
    "collectives": _collectives,
}
