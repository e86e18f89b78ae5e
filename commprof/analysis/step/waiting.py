"""Splits exposed time into waiting for the last rank and time on the wire.

A single collective is simple: the ranks wait until the last rank has arrived, and from then on
the collective is on the wire. The buckets of one backward pass follow each other over the same
wire, so the critical path is traced back from the last bucket: a bucket whose last rank arrived
while an earlier bucket was still on the wire was delayed by the wire. The path ends at the latest
bucket that was not delayed by the wire: all ranks waited for this bucket's last rank. Exposed time
before that rank arrived at this bucket is waiting. After this arrival the wire was busy without a
pause, so a rank that arrived late at a later bucket delayed nothing.

If commprof's DDP hook saw the buckets, a rank arrives when a bucket's gradients are ready. Another
hook or a compressor may run inside commprof's hook. All collectives and messages that this hook or
compressor issues for the bucket then count as time on the wire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.matching import POINT_TO_POINT
from commprof.analysis.late.arrivals import Arrivals, BucketArrivals
from commprof.analysis.step.exposure import Exposures
from commprof.trace.columns import Collectives, Ints


@dataclass(frozen=True)
class Waiting:
    """Split of each exposure into waiting and transfer; aligned with ``Exposures``."""

    #: Part of ``waited_ns`` before the deciding arrival; NaN if unknown.
    wait_ns: npt.NDArray[np.float64]
    #: Global rank that arrived last at the deciding collective; -1 if unknown.
    culprit: Ints
    #: Number of the deciding collective or bucket, see ``Arrivals``; -1 if unknown.
    number: Ints


def split(exposed: Exposures, table: Collectives, arrivals: Arrivals) -> Waiting:
    """Splits every exposure of one rank into waiting and transfer."""
    decided = {
        **_decided(_of_collectives(table, arrivals)),
        **_decided(_of_buckets(arrivals.buckets)),
    }
    arrived_ns, culprit, number = (
        np.array(
            [
                decided.get(task, _UNKNOWN)
                if task >= 0
                else _arrival(arrivals, collective)
                if collective >= 0
                else _UNKNOWN
                for collective, task in zip(
                    exposed.collective.tolist(), exposed.graph_task.tolist(), strict=True
                )
            ],
            dtype=np.int64,
        )
        .reshape(-1, 3)
        .T
    )
    length = np.maximum(1, exposed.end_ns - exposed.begin_ns)
    before = np.clip(arrived_ns - exposed.begin_ns, 0, length) / length * exposed.waited_ns
    unknown = (culprit < 0) & (exposed.waited_ns > 0)
    return Waiting(wait_ns=np.where(unknown, np.nan, before), culprit=culprit, number=number)


def not_split(exposed: Exposures) -> Waiting:
    """Returns the result of ``split`` for unknown arrivals: NaN and -1 for every exposure."""
    unknown = np.full(len(exposed), -1, dtype=np.int64)
    return Waiting(np.full(len(exposed), np.nan), unknown, unknown)


#: Time of the last arrival, rank that arrived last, number of the collective or bucket.
_Arrival = tuple[int, int, int]
_UNKNOWN: _Arrival = (0, -1, -1)


def _arrival(arrivals: Arrivals, row: int) -> _Arrival:
    return (
        int(arrivals.last_arrival_ns[row]),
        int(arrivals.late_rank[row]),
        int(arrivals.collective[row]),
    )


class _Exchanged(NamedTuple):
    """Collectives or buckets that backward passes waited for, in order of issue."""

    graph_task: Ints
    end_ns: Ints
    last_arrival_ns: Ints
    late_rank: Ints
    number: Ints


def _of_collectives(table: Collectives, arrivals: Arrivals) -> _Exchanged:
    is_message = np.isin(table.op, POINT_TO_POINT)  # DDP does not wait for messages
    rows = np.flatnonzero((table.graph_task >= 0) & (table.end_ns > 0) & ~is_message)
    return _Exchanged(
        table.graph_task[rows],
        table.end_ns[rows],
        arrivals.last_arrival_ns[rows],
        arrivals.late_rank[rows],
        arrivals.collective[rows],
    )


def _of_buckets(buckets: BucketArrivals) -> _Exchanged:
    """Returns the buckets with a known end.

    Buckets on a device have no known end; the collectives on the device's stream are used instead.
    """
    rows = np.flatnonzero((buckets.graph_task >= 0) & (buckets.end_ns > 0))
    return _Exchanged(
        buckets.graph_task[rows],
        buckets.end_ns[rows],
        buckets.last_arrival_ns[rows],
        buckets.late_rank[rows],
        buckets.number[rows],
    )


def _decided(exchanged: _Exchanged) -> dict[int, _Arrival]:
    """Returns the arrival that ended the waiting, per backward pass.

    A pass has ``_UNKNOWN`` if any collective or bucket of the pass has an unknown last arrival.
    """
    order = np.argsort(exchanged.graph_task, kind="stable")
    tasks = exchanged.graph_task[order]
    found: dict[int, _Arrival] = {}
    for part in np.split(order, np.flatnonzero(np.diff(tasks)) + 1) if len(order) else []:
        task = int(exchanged.graph_task[part[0]])
        arrived_ns = exchanged.last_arrival_ns[part]
        if (arrived_ns == 0).any():
            found[task] = _UNKNOWN
            continue
        busy_until = np.maximum.accumulate(exchanged.end_ns[part])
        wire_busy_until = np.concatenate(([0], busy_until[:-1]))
        row = part[np.flatnonzero(arrived_ns >= wire_busy_until)[-1]]
        found[task] = (
            int(exchanged.last_arrival_ns[row]),
            int(exchanged.late_rank[row]),
            int(exchanged.number[row]),
        )
    return found
