"""Export of a run as a folder of Parquet tables, for DuckDB, Spark, Ray Data, Polars and others.

The tables are:

- ``steps``, ``parts``: a row per rank and measured step.
- ``collectives``: a row per call of a rank in a measured step.
- ``waits``: a row per rank, step, rank where the waiting began, and activity of that rank.
- ``kinds``: a row per kind of collective. Ranks without steps appear only in this table.

Each table has one file per 128 ranks, in directories partitioned as in Hive:
``TABLE/world_size=N/ranks=FIRST-LAST/part.parquet``. The table ``kinds`` has one file per world
size. Names of columns include units. Unknown figures are null.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from commprof.analysis.collectives.call_columns import (
    Column,
    Columns,
    Names,
    call_columns,
    step_times,
    wait_columns,
)
from commprof.analysis.detail import PARTS
from commprof.analysis.evidence import Figure
from commprof.errors import CommprofError, UsageError
from commprof.files import is_a_device
from commprof.invocation import quoted
from commprof.report.export.rows import TABLES, Row, pyarrow_modules
from commprof.text import printable

if TYPE_CHECKING:
    from commprof.analysis.detail import WorldDetail
    from commprof.analysis.step.measured import MeasuredWorld
    from commprof.analysis.world import WorldResult
    from commprof.report.full_report import FullReport

RANKS_OF_A_FILE = 128
#: A row group is written as soon as it has this many rows. A rank's rows are in one row group.
_GROUP_ROWS = 1 << 16

KINDS = "kinds"
_CALL_TIMES = ("duration", "queue", "wait", "transfer", "group_transfer", "exposed")
#: Columns of each table: the name, and pyarrow's name of the type.
SCHEMAS: dict[str, dict[str, str]] = {
    "steps": {
        **{"rank": "int32", "host": "string", "step": "int64"},
        **{"begin_ns": "int64", "end_ns": "int64", "clocks_shared": "bool_"},
        **{"step_ms": "float64", "slowest_ms": "float64"},
    },
    "parts": {
        **{"rank": "int32", "host": "string", "step": "int64"},
        **{f"{name}_ms": "float64" for name in PARTS},
    },
    "collectives": {
        **{"rank": "int32", "host": "string", "step": "int64"},
        **{"collective": "int64", "issue_ns": "int64"},
        **{"op": "string", "group": "string", "group_size": "int32"},
        **{"dtype": "string", "reduce_op": "string", "size_bytes": "int64"},
        **{"phase": "string", "failed": "bool_"},
        **{f"{name}_ms": "float64" for name in _CALL_TIMES},
        **{"algbw_gb_per_s": "float64", "busbw_gb_per_s": "float64"},
    },
    "waits": {
        **{"rank": "int32", "host": "string", "step": "int64"},
        **{"origin_rank": "int32", "origin_host": "string"},
        **{"cause": "string", "wait_ms": "float64"},
    },
    KINDS: {
        **{"has_steps": "bool_", "op": "string", "group": "string", "group_size": "int32"},
        **{"group_ranks": "string", "dtype": "string", "reduce_op": "string"},
        **{"smallest_bytes": "int64", "largest_bytes": "int64", "calls": "int64"},
        **{"failed": "int64", "calls_per_step": "float64", "total_bytes": "int64"},
        **{"phase": "string", "exposed_ms": "float64"},
        **{"algbw_gb_per_s": "float64", "busbw_gb_per_s": "float64"},
        **{
            f"{name}_{quantile}_ms": "float64"
            for name in ("duration", "queue", "wait", "transfer")
            for quantile in ("median", "p95")
        },
    },
}
#: Integer columns in which a negative number means an unknown value.
_MAY_BE_UNKNOWN = ("group_size", "size_bytes")


def is_folder(output: Path) -> bool:
    """True if ``-o`` names a folder of tables; False for a file of one table (.parquet)."""
    return output.suffix != ".parquet" and not is_a_device(output)


def check_folder(folder: Path, force: bool) -> None:
    """Checks, before the run is read, that tables can be written into a folder.

    Raises:
        UsageError: pyarrow is not installed, the folder cannot be written to, or the folder has
            contents that must not be replaced.
    """
    pyarrow_modules()
    another = "or name another -o DIR"
    rule = "with --format parquet, -o names a directory unless it ends in .parquet"
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{quoted(folder)} is not a directory ({rule}); name another -o DIR")
    if not folder.parent.is_dir():
        raise UsageError(f"{quoted(folder.parent)} is not a directory; create it, {another}")
    if not os.access(folder if folder.exists() else folder.parent, os.W_OK):
        raise UsageError(f"{quoted(folder)} cannot be written to; name another -o DIR")
    if not folder.exists():
        return
    contents = sorted(printable(path.name) for path in folder.iterdir())
    if contents and not force:
        raise UsageError(
            f"{quoted(folder)} has contents already ({contents[0]}); give --force to replace the "
            f"tables in it, {another}"
        )
    for table in SCHEMAS:
        old = folder / table
        if os.path.lexists(old) and not _is_table(old):
            raise UsageError(
                f"{quoted(old)} is not a table that commprof wrote, and is not replaced; remove "
                f"it, {another}"
            )


def _is_table(path: Path) -> bool:
    if path.is_symlink() or not path.is_dir():
        return False
    return all(inner.name.startswith("world_size=") for inner in path.iterdir())


def write_tables(report: FullReport, folder: Path) -> dict[str, int]:
    """Writes all tables of a run into a folder; returns the number of rows of each table.

    Older tables in the folder are replaced only after all new tables are written. After an error,
    the older tables are in the folder again. If an older table cannot be moved back, the error says
    where it is.

    Raises:
        CommprofError: no step and no collective was recorded.
        UsageError: the disk is full, or the folder cannot be written to.
    """
    if not report.details and not report.result.stepless:
        reasons = "; ".join(f"{size} ranks: {why}" for size, why in report.result.failures)
        raise CommprofError(
            "no step and no collective was recorded, so the tables have no rows"
            f"{f' ({reasons})' if reasons else ''}"
        )
    is_new = not folder.exists()
    # Query engines skip files and folders whose names begin with a dot.
    partial = folder / f".tables.{socket.gethostname()}.{os.getpid()}"
    is_replaced = False
    try:
        partial.mkdir(parents=True)
        counts: dict[str, int] = {}
        for detail, world in zip(report.details, report.result.worlds, strict=True):
            for table, rows in _write_world(detail, world, partial):
                counts[table] = counts.get(table, 0) + rows
        for world_size, kinds in _kinds(report).items():
            folder_of = partial / KINDS / f"world_size={world_size}"
            counts[KINDS] = counts.get(KINDS, 0) + _write_kinds(folder_of, kinds)
        _replace_tables(folder, partial)
        is_replaced = True
    except OSError as error:
        is_known = error.errno is not None and error.errno in errno.errorcode
        reason = os.strerror(error.errno or 0) if is_known else str(error)
        raise UsageError(
            f"cannot write the tables into {quoted(folder)}: {printable(reason)}; the files "
            f"written so far are removed{_left_behind(partial)}; name another -o DIR"
        ) from None
    finally:
        if is_replaced or not _left_behind(partial):
            shutil.rmtree(partial, ignore_errors=True)
        if is_new:
            with suppress(OSError):  # fails if the folder holds the tables
                folder.rmdir()
    return counts


def _replace_tables(folder: Path, partial: Path) -> None:
    """Moves new tables from ``partial`` to ``folder``; after an error, restores older tables."""
    replaced = []
    try:
        for table in SCHEMAS:
            if (folder / table).exists():
                os.replace(folder / table, _older(partial, table))
            if (partial / table).exists():
                os.replace(partial / table, folder / table)
                replaced.append(table)
    except BaseException:
        for table in replaced:
            shutil.rmtree(folder / table, ignore_errors=True)
        for table in SCHEMAS:
            if (older := _older(partial, table)).exists():
                with suppress(OSError):
                    os.replace(older, folder / table)
        raise


def _older(partial: Path, table: str) -> Path:
    return partial / f"old_{table}"


def _left_behind(partial: Path) -> str:
    """Returns a clause on older tables that could not be moved back; empty if there are none."""
    left = [table for table in SCHEMAS if _older(partial, table).exists()]
    return f"; older tables are in {quoted(partial)}: {', '.join(left)}" if left else ""


def unknown_lines(report: FullReport) -> Iterator[str]:
    """Yields a line for each kind of figure that the tables of this run lack, with the reason."""
    named = {
        Figure.PARTS: "the parts of steps are null",
        Figure.EXPOSED: "exposed_ms is null",
        Figure.CALLS: "times of collectives are null",
        Figure.SPLIT: "waits has no rows",
    }
    for world in report.result.worlds:
        for figure, what in named.items():
            if why := world.evidence.lacking(figure):
                yield f"world size {world.world_size}: {what}: {why}"
    for size, why in report.result.failures:
        yield f"world size {size} has no rows of steps, calls or waits: {why}"


def _write_world(
    detail: WorldDetail, world: WorldResult, folder: Path
) -> Iterator[tuple[str, int]]:
    seen = detail.drawn.seen()
    if seen is None:
        raise ValueError("the ranks' records were freed when the timeline was drawn")
    hosts = [""] * detail.world_size
    for rank in world.ranks:
        hosts[rank.rank] = rank.host
    in_order = range(len(detail.ranks))
    sources: dict[str, Iterable[Columns]] = {
        "steps": (_steps(detail, seen, row) for row in in_order),
        "parts": (_parts(detail, row) for row in in_order),
        "collectives": call_columns(seen, world.evidence),
        "waits": (_waits(seen, world, hosts, row) for row in in_order),
    }
    for table, of_ranks in sources.items():
        place = folder / table / f"world_size={detail.world_size}"
        numbered = zip(detail.ranks, of_ranks, strict=True)
        for number, of_file in groupby(numbered, lambda pair: pair[0] // RANKS_OF_A_FILE):
            first = number * RANKS_OF_A_FILE
            last = min(first + RANKS_OF_A_FILE, detail.world_size) - 1
            ranks = ((rank, hosts[rank], found) for rank, found in of_file)
            yield table, _write_file(place / f"ranks={first}-{last}", table, ranks)


def _write_file(path: Path, table: str, ranks: Iterable[tuple[int, str, Columns]]) -> int:
    arrow, parquet = pyarrow_modules()
    schema = _schema(table)
    path.mkdir(parents=True)
    total = 0
    with parquet.ParquetWriter(path / "part.parquet", schema, compression="zstd") as writer:
        group: list[Any] = []
        rows = 0
        for rank, host, table_columns in ranks:
            count = len(table_columns["step"])
            same: Columns = {
                "rank": np.full(count, rank),
                "host": Names(np.zeros(count, dtype=np.int64), (host,)),
            }
            arrays = [
                _array(arrow, name, kind, {**same, **table_columns}) for name, kind in _types(table)
            ]
            group.append(arrow.Table.from_arrays(arrays, schema=schema))
            rows, total = rows + count, total + count
            if rows >= _GROUP_ROWS:
                writer.write_table(arrow.concat_tables(group).combine_chunks(), rows)
                group, rows = [], 0
        if rows:
            writer.write_table(arrow.concat_tables(group).combine_chunks(), rows)
    return total


def _kinds(report: FullReport) -> dict[int, list[Row]]:
    rows_of: dict[int, list[Row]] = {}
    for row in TABLES["collectives"](report):
        rows_of.setdefault(row["world_size"], []).append(row)
    return rows_of


def _write_kinds(path: Path, rows: list[Row]) -> int:
    arrow, parquet = pyarrow_modules()
    path.mkdir(parents=True)
    known_rows = [{name: _known(row[name]) for name in SCHEMAS[KINDS]} for row in rows]
    parquet.write_table(
        arrow.Table.from_pylist(known_rows, schema=_schema(KINDS)), path / "part.parquet"
    )
    return len(rows)


def _known(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value) or None
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _schema(table: str) -> Any:
    arrow, _ = pyarrow_modules()
    return arrow.schema([(name, getattr(arrow, kind)()) for name, kind in _types(table)])


def _types(table: str) -> list[tuple[str, str]]:
    return list(SCHEMAS[table].items())


def _array(arrow: Any, name: str, kind: str, table_columns: Columns) -> Any:
    column: Column = table_columns[name]
    if isinstance(column, Names):
        names = arrow.array([printable(text) or None for text in column.names], arrow.string())
        return names.take(arrow.array(column.code, arrow.int64(), mask=column.code < 0))
    unknown = None
    if kind == "float64":
        unknown = ~np.isfinite(column)
    elif name in _MAY_BE_UNKNOWN:
        unknown = column < 0
    return arrow.array(column, mask=unknown).cast(getattr(arrow, kind)())


def _steps(detail: WorldDetail, seen: MeasuredWorld, row: int) -> Columns:
    begin_ns, end_ns = step_times(seen, row)
    return {
        "step": detail.steps,
        "begin_ns": begin_ns,
        "end_ns": end_ns,
        "clocks_shared": np.full(len(detail.steps), detail.clocks_shared),
        "step_ms": detail.parts_ms["step"][row],
        "slowest_ms": detail.slowest_ms,
    }


def _parts(detail: WorldDetail, row: int) -> Columns:
    return {
        "step": detail.steps,
        **{f"{name}_ms": detail.parts_ms[name][row] for name in PARTS},
    }


def _waits(seen: MeasuredWorld, world: WorldResult, hosts: list[str], row: int) -> Columns:
    waits = wait_columns(seen, row, world.evidence)
    origin = waits["origin_rank"]
    assert not isinstance(origin, Names)
    return {**waits, "origin_host": Names(origin, tuple(hosts))}
