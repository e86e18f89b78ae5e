"""Measured collectives: the points that a cost curve is fitted to."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commprof import invocation
from commprof.analysis.sweeps.sweep_file import read_document, read_sweep
from commprof.errors import CommprofError
from commprof.files import checked
from commprof.forecast.costs.algorithms import OPERATIONS, canonical
from commprof.forecast.costs.cost_model import OTHER_HOST, SAME_HOST
from commprof.forecast.costs.hook_costs import recording
from commprof.recordings.nccl_tests import is_nccl_tests
from commprof.stats.intervals import robust_deviation
from commprof.text import counted

_US = 1e-6
#: Standard error of a median, divided by the standard error of a mean, for normal values.
_OF_A_MEDIAN = 1.2533


@dataclass(frozen=True)
class Point:
    """One collective at one message size, with its time."""

    op: str
    backend: str
    ranks: int
    size_bytes: float
    #: Median over the calls; in a point from nccl-tests, the mean.
    time_s: float
    #: Times of single calls; empty if the file has none.
    samples_s: tuple[float, ...] = ()
    #: Ranks per usable core of a host; NaN if unknown.
    ranks_per_core: float = math.nan
    #: Relative standard error of the time; 0 if unknown.
    error: float = 0.0
    #: Link class: ``OTHER_HOST`` if the point's ranks were on several hosts, else ``SAME_HOST``.
    link: str = SAME_HOST


@dataclass(frozen=True)
class _Row:
    op: str
    world_size: int
    backend: str
    size_bytes: float
    time_us: float
    placement: str = "out_of_place"
    wrong: int | None = None
    samples_us: tuple[float, ...] | None = None


@dataclass(frozen=True)
class _Context:
    """Hosts and machine of a measurement; None for values that the file lacks."""

    hosts: int | None = None
    world_size: int | None = None
    #: Index of each rank's host.
    rank_hosts: tuple[int, ...] | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Measurement:
    """Points of one file, with the machine of the measurement."""

    points: tuple[Point, ...]
    machine: Mapping[str, Any]
    #: Descriptions of unused rows.
    left_out: tuple[str, ...] = ()
    #: Notes for a reader of the figures: sentences without a full stop.
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Spread:
    #: Index of each rank's host; empty if unknown. If unknown, each host is assumed to have the
    #: same number of consecutive ranks.
    rank_hosts: tuple[int, ...]
    #: Number of hosts and ranks of the whole job.
    hosts: int
    ranks: int
    #: Cores of rank 0's host. All hosts are assumed to have the same number of cores.
    usable_cores: float

    def placed(self, point: Point) -> Point:
        """Returns a point of the job's first ranks, with its link class and ranks per core."""
        if self.rank_hosts:
            together = max(Counter(self.rank_hosts[: point.ranks]).values())
        else:
            together = min(point.ranks, math.ceil(self.ranks / self.hosts))
        return dataclasses.replace(
            point,
            link=SAME_HOST if together == point.ranks else OTHER_HOST,
            ranks_per_core=together / self.usable_cores,
        )


def read_points(path: Path) -> Measurement:
    """Reads points from a result of a microbenchmark or of nccl-tests.

    Raises:
        CommprofError: the file is not such a result, is damaged or of an unsupported version, has
            no rows of a microbenchmark, or is of nccl-tests and does not name each rank's host.
    """
    if is_nccl_tests(path):
        return _of_nccl_tests(path)
    document = read_document(path)
    try:
        rows = checked(document.get("rows", []), tuple[_Row, ...], "rows")
        context = checked(document.get("context", {}), _Context, "context")
        spread = _spread(context, max((row.world_size for row in rows), default=1))
    except ValueError as error:
        raise CommprofError(f"{invocation.quoted(path)} is damaged: {error}") from None
    if not rows:
        raise CommprofError(
            f"{invocation.quoted(path)} has no rows of a microbenchmark; write a new file with "
            + invocation.command("microbench", "OP", "--json", "FILE")
        )
    points = tuple(
        spread.placed(with_error(point)) for row in rows if (point := _point(row)) is not None
    )
    return Measurement(points, context.machine, tuple(_left_out(path, rows)))


def _of_nccl_tests(path: Path) -> Measurement:
    sweep = read_sweep(path)
    hosts = sweep.context["hosts"]
    if hosts is None:
        raise CommprofError(
            f"{invocation.quoted(path)} does not name the host of every rank, which a fit must "
            "know; give the printed text with the lines `# Rank ...` of all ranks"
        )
    rows = [
        checked({**dataclasses.asdict(row), **dataclasses.asdict(row.key)}, _Row)
        for row in sweep.rows
    ]
    in_place_s = {
        dataclasses.replace(row.key, placement="out_of_place"): row.time_us * _US
        for row in sweep.rows
        if row.key.placement == "in_place"
    }
    out_of_place = {row.key for row in sweep.rows if row.key.placement == "out_of_place"}
    # All ranks of the job take part in each collective.
    link = OTHER_HOST if hosts > 1 else SAME_HOST
    points = []
    for found, row in zip(rows, sweep.rows, strict=True):
        key = dataclasses.replace(row.key, placement="out_of_place")
        alone = key not in out_of_place  # measured in place only
        point = _point(dataclasses.replace(found, placement=key.placement) if alone else found)
        if point is not None:
            other_s = None if alone else in_place_s.get(key)
            points.append(dataclasses.replace(point, error=_error(point, other_s), link=link))
    remarks = tuple(sweep.context["remarks"])
    return Measurement(tuple(points), {}, tuple(_left_out(path, rows)), remarks)


def with_error(point: Point) -> Point:
    """Returns the point with the error that follows from the spread of its samples."""
    return dataclasses.replace(point, error=_error(point, None))


def _error(point: Point, in_place_s: float | None) -> float:
    """Returns the relative standard error of the point's time; 0 if unknown.

    The error follows from the spread of the samples. With fewer than two samples, it is the
    relative difference between the in-place time and the point's time.
    """
    if len(point.samples_s) > 1:
        spread_s = robust_deviation(point.samples_s)
        return _OF_A_MEDIAN * spread_s / math.sqrt(len(point.samples_s)) / point.time_s
    if in_place_s is None:
        return 0.0
    return abs(math.log(in_place_s / point.time_s))


def _spread(context: _Context, most_ranks: int) -> _Spread:
    cores = checked(context.machine, {"usable_cpu_count": int | None}, "context.machine")
    return _Spread(
        context.rank_hosts or (),
        context.hosts or 1,
        max(context.world_size or 1, most_ranks),
        float(cores.get("usable_cpu_count") or math.nan),
    )


def _left_out(path: Path, rows: Sequence[_Row]) -> Iterator[str]:
    hooks = sorted({row.op for row in rows if row.op.startswith("hook:")})
    if hooks:
        yield (
            f"{invocation.quoted(path)}: rows of {', '.join(hooks)} are not used, because the cost "
            "of a hook is fitted only to a recorded run with this hook; record a run: "
            + recording(hooks[0].removeprefix("hook:"))
        )
    wrong = sum(bool(row.wrong) for row in rows)
    if wrong:
        yield f"{invocation.quoted(path)}: {counted(wrong, 'row')} with wrong data"


def _point(row: _Row) -> Point | None:
    op = canonical(row.op)
    usable = (
        op in OPERATIONS
        and row.placement == "out_of_place"
        and not row.wrong
        and row.time_us > 0
        and row.world_size > 1
    )
    if not usable:
        return None
    return Point(
        op=op,
        backend=row.backend,
        ranks=row.world_size,
        size_bytes=row.size_bytes,
        time_s=row.time_us * _US,
        samples_s=tuple(value * _US for value in row.samples_us or ()),
    )
