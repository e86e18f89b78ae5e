"""A sweep's result as JSON: the file between measuring, reporting, comparing and fitting."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commprof import invocation
from commprof.analysis.collectives.nccl_tests_sweep import read_nccl_tests_sweep
from commprof.analysis.collectives.sweep import OverlapRow, RowKey, SweepResult, SweepRow
from commprof.errors import UsageError
from commprof.files import read_json, replace_file
from commprof.recordings.nccl_tests import is_nccl_tests

#: Raised when a field changes its meaning or goes away, not when one is added.
SCHEMA_VERSION = 1
KIND = "commprof microbench"

_DIGITS = 3  # of microseconds: the clock's nanosecond


def write_sweep(path: Path, result: SweepResult) -> None:
    """Writes it so that a reader finds the whole file or none."""
    replace_file(path, render(result))


def render(result: SweepResult) -> str:
    """The JSON text: a line per row; figures that do not exist are null."""
    head = {
        "schema_version": SCHEMA_VERSION,
        "kind": KIND,
        "context": result.context,
        "problems": list(result.problems),
    }
    text = json.dumps(head, indent=1, allow_nan=False)[: -len("\n}")]
    for name, rows in (("rows", result.rows), ("overlap_rows", result.overlap_rows)):
        lines = ",\n".join("  " + json.dumps(_flat(row), allow_nan=False) for row in rows)
        text += f',\n "{name}": [' + (f"\n{lines}\n ]" if lines else "]")
    return text + "\n}\n"


def read_sweep(path: Path) -> SweepResult:
    """Reads what `write_sweep` wrote, or a result of nccl-tests.

    Raises UsageError for a file that is none, or of another version.
    """
    if is_nccl_tests(path):
        return read_nccl_tests_sweep(path)
    try:
        value = read_json(path)
    except OSError as error:
        raise UsageError(f"cannot read {invocation.quoted(path)}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{invocation.quoted(path)} is no JSON file: {error}") from None
    if not isinstance(value, dict) or value.get("kind") != KIND:
        raise UsageError(
            f"{invocation.quoted(path)} is no result of a sweep; write one with "
            + invocation.command("microbench", "...", "--json", "FILE")
        )
    if value.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(
            f"{invocation.quoted(path)} has schema_version {value.get('schema_version')!r} "
            f"(allowed: {SCHEMA_VERSION}); read it with the commprof that wrote it, or measure "
            "again"
        )
    try:
        return SweepResult(
            context=dict(value["context"]),
            rows=tuple(_row(SweepRow, row) for row in value["rows"]),
            overlap_rows=tuple(_row(OverlapRow, row) for row in value["overlap_rows"]),
            problems=tuple(value["problems"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{invocation.quoted(path)} is damaged: {type(error).__name__} {error}"
        ) from None


def _flat(row: SweepRow | OverlapRow) -> dict[str, Any]:
    """The key's fields beside the others."""
    values = dataclasses.asdict(row)
    return {name: _plain(value) for name, value in (values.pop("key") | values).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return round(value, _DIGITS) if abs(value) >= 1 else float(f"{value:.6g}")


def _row(kind: Any, values: Mapping[str, Any]) -> Any:
    """Fields that this version does not know are left out: a newer one may have added them."""
    given: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name == "key":
            given["key"] = RowKey(**{f.name: values[f.name] for f in dataclasses.fields(RowKey)})
            continue
        if field.name not in values and field.default is not dataclasses.MISSING:
            continue  # added later than the file was written
        value = values[field.name]
        if value is None and field.type == "float":
            value = math.nan
        given[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**given)
