"""Reads and writes a sweep's result as commprof's JSON, and reads results of nccl-tests."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from commprof import invocation
from commprof.analysis.collectives.traffic import bus_factor
from commprof.analysis.sweeps.sweep import NCCL_TESTS, OverlapRow, RowKey, SweepResult, SweepRow
from commprof.errors import UsageError
from commprof.files import checked, read_json, replace_file
from commprof.recordings.nccl_tests import (
    NcclTestsLog,
    NcclTestsRow,
    is_nccl_tests,
    read_nccl_tests,
)


def read_nccl_tests_sweep(path: Path) -> SweepResult:
    """Reads a result of nccl-tests as a sweep.

    Raises:
        UsageError: the file is not a usable result of nccl-tests.
    """
    logs = read_nccl_tests(path)
    rows = [made for log in logs for made in _rows_of_log(log)]
    remarks = [
        f"{invocation.quoted(path)}: {remark}" for log in logs if log.rows for remark in log.remarks
    ]
    context = {
        "instrument": NCCL_TESTS,
        "world_size": max(log.ranks for log in logs),
        "hosts": next(log.hosts for log in logs if log.rows),
        "remarks": list(dict.fromkeys(remarks)),
        "machine": {},
    }
    # If two runs measured the same case, the first one counts.
    unique = {row.key: row for row in reversed(rows)}
    return SweepResult(context=context, rows=tuple(row for row in rows if unique[row.key] is row))


def _rows_of_log(log: NcclTestsLog) -> list[SweepRow]:
    cases: dict[RowKey, list[NcclTestsRow]] = {}
    for row in log.rows:
        key = RowKey(
            op=log.op,
            dtype=row.dtype,
            redop=row.redop,
            world_size=log.ranks,
            backend="nccl",
            placement=row.placement,
            size_bytes=row.size_bytes,
            count=row.count,
        )
        cases.setdefault(key, []).append(row)
    return [_row(key, rows) for key, rows in cases.items()]


def _row(key: RowKey, rows: Sequence[NcclTestsRow]) -> SweepRow:
    """Makes a row from the results of one case; each pass over all sizes is a round.

    If the file holds only the mean of a pass, this mean is the only sample of the pass.
    """
    passes: dict[int, list[float]] = {}
    for row in rows:
        passes.setdefault(row.round, []).extend(row.samples_us or (row.time_us,))
    samples = np.array([sample for of_pass in passes.values() for sample in of_pass])
    time_us = float(np.median(samples))
    least_us, p99_us, most_us = samples.min(), np.percentile(samples, 99), samples.max()
    cv = samples.std() / samples.mean() if len(samples) > 1 else math.nan
    if len(samples) == 1 and (spread := rows[0].spread):
        least_us, p99_us, most_us, cv = spread.min_us, spread.p99_us, spread.max_us, spread.cv
    checked = [row.wrong for row in rows if row.wrong is not None]
    algbw = key.size_bytes / (time_us * 1e3)
    return SweepRow(
        key=key,
        root=rows[0].root,
        time_us=time_us,
        min_us=float(least_us),
        p50_us=time_us,
        p99_us=float(p99_us),
        max_us=float(most_us),
        cv=float(cv),
        algbw_gb_per_s=algbw,
        busbw_gb_per_s=algbw * bus_factor(key.op, key.world_size),
        wrong=sum(checked) if checked else None,
        iterations=len(samples),
        skew_us=math.nan,
        samples_us=tuple(samples.tolist()),
        round_iterations=tuple(len(of_pass) for of_pass in passes.values()),
    )


#: Increased when a field is removed or changes its meaning, but not when a field is added.
SCHEMA_VERSION = 1
KIND = "commprof microbench"

_DIGITS = 3  # decimals of a time in µs, which the clock counts in ns


def write_sweep(path: Path, result: SweepResult) -> None:
    """Writes a sweep; a reader never finds a half-written file."""
    replace_file(path, render(result))


def render(result: SweepResult) -> str:
    """Renders a sweep as JSON with one line per row; NaN becomes null."""
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
    """Reads a file that `write_sweep` wrote, or a result of nccl-tests.

    Raises:
        UsageError: the file holds no sweep, is damaged, or has another ``SCHEMA_VERSION``.
    """
    if is_nccl_tests(path):
        return read_nccl_tests_sweep(path)
    value = read_document(path)
    try:
        return SweepResult(
            context=checked(value, {"context": dict})["context"],
            rows=_rows(value, "rows", SweepRow),
            overlap_rows=_rows(value, "overlap_rows", OverlapRow),
            problems=checked(value.get("problems"), tuple[str, ...], "problems"),
        )
    except ValueError as error:
        raise UsageError(f"{invocation.quoted(path)} is damaged: {error}") from None


def read_document(path: Path) -> dict[str, Any]:
    """Reads the JSON of a file that `write_sweep` wrote; checks only its kind and version.

    Raises:
        UsageError: `write_sweep` did not write the file, or it has another ``SCHEMA_VERSION``.
    """
    try:
        value = read_json(path)
    except OSError as error:
        raise UsageError(f"{invocation.quoted(path)} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise _no_result(path, f" (not a JSON file: {error})") from None
    if not isinstance(value, dict) or value.get("kind") != KIND:
        raise _no_result(path)
    if value.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(
            f"{invocation.quoted(path)} has schema_version {value.get('schema_version')!r} "
            f"(allowed: {SCHEMA_VERSION}); read the file with the version of commprof that wrote "
            "it, or measure again"
        )
    return value


def _no_result(path: Path, why: str = "") -> UsageError:
    from commprof.recordings.recognise import not_measured  # imported only for this error

    if recognised := not_measured(path):
        return UsageError(recognised)
    write = invocation.command("microbench", "OP", "--json", "FILE")
    return UsageError(
        f"{invocation.quoted(path)} is not a microbenchmark result{why}; write one with {write}"
    )


def _flat(row: SweepRow | OverlapRow) -> dict[str, Any]:
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


def _rows(value: Mapping[str, Any], name: str, kind: Any) -> Any:
    """Reads the rows of type ``kind`` from ``value[name]``, a list of mappings from `_flat`."""
    flat = checked(value, {name: list[dict[str, Any]]})[name]
    return checked([{**row, "key": row} for row in flat], tuple[kind, ...], name)
