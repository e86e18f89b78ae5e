"""Reads points for cost curves from the collectives of recorded jobs without steps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.alike_ranks import sizes_of_groups
from commprof.analysis.align.clocks import on_common_clock, rank_clocks
from commprof.analysis.align.device_timeline import on_device_timeline
from commprof.analysis.align.interfaces import Host, host_of_each, unknown_hosts
from commprof.analysis.align.matching import Matching, match
from commprof.analysis.collectives.traffic import sizes_bytes
from commprof.forecast.costs.algorithms import OPERATIONS, canonical
from commprof.forecast.costs.cost_model import OTHER_HOST, SAME_HOST
from commprof.forecast.fit.points import Measurement, Point
from commprof.forecast.scenario.schedule import hosts_of, machine_cpus
from commprof.trace import columns
from commprof.trace.columns import Collectives
from commprof.trace.reader import Trace
from commprof.trace.run.run_directory import WorldRun, read_context, read_world
from commprof.trace.schema import POINT_TO_POINT, op_name

#: Least number of calls of one kind and size for a point.
_LEAST_CALLS = 3


def read_calls(directory: Path, with_steps: Collection[int] = ()) -> list[Measurement]:
    """Reads the collectives of a run, for each world size without steps.

    Args:
        directory: the run.
        with_steps: world sizes to skip, because they have steps.

    Raises:
        CommprofError: ``directory`` is not a run directory.
    """
    sizes = [size for size in read_context(directory)["world_sizes"] if size not in with_steps]
    runs = (read_world(directory, size) for size in sizes)
    measurements = [_measurement(run) for run in runs if _is_stepless(run)]
    return [
        measurement for measurement in measurements if measurement.points or measurement.left_out
    ]


def _is_stepless(run: WorldRun) -> bool:
    traces = run.traces.values()
    return len(traces) > 1 and not any(len(columns.steps(trace)) for trace in traces)


def _measurement(run: WorldRun) -> Measurement:
    recorded = [on_device_timeline(run.traces[rank]) for rank in sorted(run.traces)]
    clocks = rank_clocks(recorded)
    name = f"{run.directory} ({run.world_size} ranks)"
    if clocks is None:
        reason = f"{name}: the ranks' clocks cannot be compared, so no collective's time is known"
        return Measurement((), recorded[0].metadata["machine"], (reason,))
    points = tuple(_points(on_common_clock(recorded, clocks)))
    lost = unknown_hosts(recorded, host_of_each(recorded))
    reason = f"{name}: {lost}; calls in which such a rank took part are not used"
    return Measurement(points, recorded[0].metadata["machine"], (reason,) if lost else ())


def _points(traces: Sequence[Trace]) -> Iterator[Point]:
    """Yields a point per operation, number of ranks, size in bytes and link class.

    A call lasts from the latest issue on any rank to the latest end on any rank. The time of a
    point is the median over its calls. A call is left out if it failed, overlapped with another
    call, or has no exact end, or if the host of a rank is unknown.
    """
    places = host_of_each(traces)
    tables = [columns.collectives(trace) for trace in traces]
    matching = match(traces, tables)
    op, bytes_in, bytes_out, issue, end = (
        np.concatenate([getattr(table, field) for table in tables])
        for field in ("op", "bytes_in", "bytes_out", "issue_ns", "end_ns")
    )
    ranks = sizes_of_groups(traces, tables)
    usable = np.concatenate(
        [
            t.end_is_exact & ~t.failed & _alone(t) & (place is not None)
            for t, place in zip(tables, places, strict=True)
        ]
    )
    issued, _ = matching.latest(issue)
    ended, _ = matching.latest(end)
    is_known = matching.every(usable) & (ended > issued) & ~np.isin(op, POINT_TO_POINT)
    _, first = np.unique(matching.member, return_index=True)
    rows = first[is_known[first]]
    sizes = sizes_bytes(op, bytes_in, bytes_out, ranks)
    keys = np.stack([op, ranks, sizes, _crosses_hosts(places, matching)], axis=1)[rows]
    kinds, place, count = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    rows = rows[np.argsort(place.reshape(-1), kind="stable")]
    per_core = len(traces) / len(hosts_of(traces)) / machine_cpus(traces)
    for kind, end, calls in zip(kinds, np.cumsum(count), count, strict=True):
        name = canonical(op_name(int(kind[0])))
        mine = rows[end - calls : end]
        if name not in OPERATIONS or kind[1] < 2 or len(mine) < _LEAST_CALLS:
            continue
        samples = (ended[mine] - issued[mine]) / 1e9
        yield Point(
            op=name,
            backend=str(traces[0].metadata["backend"]) or "gloo",
            ranks=int(kind[1]),
            size_bytes=float(kind[2]),
            time_s=float(np.median(samples)),
            samples_s=tuple(samples.tolist()),
            ranks_per_core=per_core,
            link=OTHER_HOST if kind[3] else SAME_HOST,
        )


def _crosses_hosts(places: Sequence[Host | None], matching: Matching) -> npt.NDArray[np.bool_]:
    """Returns a flag per row: True if the collective's ranks were on several hosts.

    The flag is also True if the collective is not complete.
    """
    host = np.repeat([places.index(place) for place in places], matching.lengths)
    highest, _ = matching.latest(host)
    return ~matching.every(host == highest)


def _alone(table: Collectives) -> npt.NDArray[np.bool_]:
    """Returns a flag per call: True if the rank had no other call in flight at the time."""
    order = np.argsort(table.issue_ns, kind="stable")
    issue, end = table.issue_ns[order], table.end_ns[order]
    before = np.maximum.accumulate(end)[:-1] <= issue[1:]
    alone = np.ones(len(table), dtype=bool)
    alone[order[1:]] &= before
    alone[order[:-1]] &= before
    return alone
