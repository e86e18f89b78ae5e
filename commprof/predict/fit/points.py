"""Measured collectives: the points that a cost curve is fitted to."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commprof import invocation
from commprof.analysis.collectives.sweep_file import KIND, SCHEMA_VERSION, read_sweep
from commprof.errors import CommprofError
from commprof.files import read_json
from commprof.predict.fit.cost_model import OTHER_HOST, SAME_HOST
from commprof.predict.fit.hook_costs import recording
from commprof.predict.replay.algorithms import OPERATIONS, canonical
from commprof.recordings.nccl_tests import is_nccl_tests
from commprof.text import counted

_FIELDS = ("op", "world_size", "backend", "size_bytes", "time_us")
_US = 1e-6


@dataclass(frozen=True)
class Point:
    """One collective at one size: time of the slowest rank."""

    op: str
    backend: str
    ranks: int
    size_bytes: float
    #: Median.
    time_s: float
    #: Single calls; empty where the file has none.
    samples_s: tuple[float, ...] = ()
    #: Ranks on one host over its usable cores; NaN where not known.
    ranks_per_core: float = math.nan


@dataclass(frozen=True)
class Measurement:
    """The points of one file, and where they were taken."""

    points: tuple[Point, ...]
    link: str
    machine: Mapping[str, Any]
    #: Rows that say nothing here, in words.
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Spread:
    """How the ranks of a file were spread over hosts: evenly, one host's after the other's."""

    hosts: int
    #: All of the job; its first ones made up the smaller groups.
    ranks: int
    #: Of rank 0's host, which stands for all.
    usable_cores: float

    def ranks_per_core(self, ranks: int) -> float:
        """On the host with the most of the first so many ranks."""
        return min(ranks, math.ceil(self.ranks / self.hosts)) / self.usable_cores


def read_points(path: Path) -> Measurement:
    """Points of a microbenchmark's JSON, or of nccl-tests; out-of-place rows where there are both.

    Raises:
        CommprofError: the file is no result of a microbenchmark, of a version that is not known
            here, or has no such rows.
    """
    if is_nccl_tests(path):
        return _of_nccl_tests(path)
    try:
        document = read_json(path)
    except (OSError, ValueError) as error:
        raise CommprofError(f"{invocation.quoted(path)} cannot be read: {error}") from None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise CommprofError(
            f"{invocation.quoted(path)} is no result of a microbenchmark; write one with "
            + invocation.command("microbench", "OP", "--json", "FILE")
        )
    if document.get("schema_version") != SCHEMA_VERSION:
        raise CommprofError(
            f"{invocation.quoted(path)} has schema_version {document.get('schema_version')!r} "
            f"(allowed: {SCHEMA_VERSION}); fit it with the commprof that wrote it, or measure again"
        )
    rows = document.get("rows")
    if not isinstance(rows, list) or not rows:
        raise CommprofError(
            f"{invocation.quoted(path)} has no rows of a microbenchmark; write one with "
            + invocation.command("microbench", "OP", "--json", "FILE")
        )
    context = document.get("context")
    context = context if isinstance(context, dict) else {}
    machine = context.get("machine")
    machine = machine if isinstance(machine, dict) else {}
    points = [point for row in rows if (point := _point(path, row)) is not None]
    spread = _spread(context, machine, max((point.ranks for point in points), default=1))
    return Measurement(
        tuple(
            dataclasses.replace(point, ranks_per_core=spread.ranks_per_core(point.ranks))
            for point in points
        ),
        OTHER_HOST if spread.hosts > 1 else SAME_HOST,
        machine,
        tuple(_left_out(path, rows)),
    )


def _of_nccl_tests(path: Path) -> Measurement:
    """On the links of its hosts; whose cores the ranks had, such a file does not say."""
    sweep = read_sweep(path)
    rows = [{**dataclasses.asdict(row), **dataclasses.asdict(row.key)} for row in sweep.rows]
    points = tuple(point for row in rows if (point := _point(path, row)) is not None)
    link = OTHER_HOST if sweep.context["hosts"] > 1 else SAME_HOST
    return Measurement(points, link, {}, tuple(_left_out(path, rows)))


def _spread(context: Mapping[str, Any], machine: Mapping[str, Any], most_ranks: int) -> _Spread:
    """As the file says; one host, and no ranks but those of its rows, where it does not."""
    hosts, ranks = (_positive(context.get(name)) for name in ("hosts", "world_size"))
    cores = _positive(machine.get("usable_cpu_count"))
    return _Spread(hosts or 1, max(ranks or 1, most_ranks), float(cores or math.nan))


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _left_out(path: Path, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Of rows that somebody may miss: hooks, and wrong data."""
    hooks = sorted({str(row["op"]) for row in rows if str(row["op"]).startswith("hook:")})
    if hooks:
        yield (
            f"{invocation.quoted(path)}: {', '.join(hooks)}; what a hook costs is fitted to a "
            "recorded run with it: " + recording(hooks[0].removeprefix("hook:"))
        )
    wrong = sum(bool(row.get("wrong")) for row in rows)
    if wrong:
        yield f"{invocation.quoted(path)}: {counted(wrong, 'row')} with wrong data"


def _point(path: Path, row: object) -> Point | None:
    """None for a row that says nothing of the link: in place, wrong, failed, or one rank."""
    if not isinstance(row, dict) or any(field not in row for field in _FIELDS):
        wanted = ", ".join(_FIELDS)
        raise CommprofError(
            f"{invocation.quoted(path)}: a row lacks one of {wanted}: {str(row)[:80]}"
        )
    op = canonical(str(row["op"]))
    time_us, wrong = row["time_us"], row.get("wrong")
    usable = (
        op in OPERATIONS
        and row.get("placement", "out_of_place") == "out_of_place"
        and not row.get("hook")
        and not wrong
        and isinstance(time_us, int | float)
        and time_us > 0
        and row["world_size"] > 1
    )
    if not usable:
        return None
    samples = row.get("samples_us") or ()
    return Point(
        op=op,
        backend=str(row["backend"]),
        ranks=int(row["world_size"]),
        size_bytes=float(row["size_bytes"]),
        time_s=float(time_us) * _US,
        samples_s=tuple(float(value) * _US for value in samples),
    )
