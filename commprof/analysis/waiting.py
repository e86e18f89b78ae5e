"""Splits exposed time: waiting for the last rank, and time on the wire.

A single collective is simple: until its last rank has arrived the others wait, after that it is
on the wire. The buckets of one backward pass follow each other over the same wire, so the
critical path is walked back from the last one: a bucket whose last rank arrived while an earlier
bucket was still on the wire was held up by the wire; the first bucket on that way that was not
is the one that everybody waited for. Exposed time before its last arrival is waiting; from there
on the wire was busy without a pause, and who came late meanwhile cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.analysis.arrivals import Arrivals
from commprof.analysis.exposure import Exposures
from commprof.analysis.matching import POINT_TO_POINT
from commprof.trace.columns import Collectives, Ints


@dataclass(frozen=True)
class Waiting:
    """Aligned with ``Exposures``."""

    #: Part of ``waited_ns`` before the deciding arrival; NaN where it is not known.
    wait_ns: npt.NDArray[np.float64]
    #: Global rank that arrived last at the deciding collective; -1 where not known.
    culprit: Ints
    #: Row of the deciding collective; -1 where not known.
    collective: Ints


def split(exposed: Exposures, table: Collectives, arrivals: Arrivals) -> Waiting:
    """Splits every exposure of one rank."""
    deciding = _deciding_collectives(table, arrivals)
    row = np.array(
        [
            collective if task < 0 else deciding.get(task, -1)
            for collective, task in zip(
                exposed.collective.tolist(), exposed.graph_task.tolist(), strict=True
            )
        ],
        dtype=np.int64,
    )
    known = row >= 0
    arrived_ns = np.zeros(len(exposed), dtype=np.int64)
    culprit = np.full(len(exposed), -1, dtype=np.int64)
    arrived_ns[known] = arrivals.last_arrival_ns[row[known]]
    culprit[known] = arrivals.late_rank[row[known]]
    length = np.maximum(1, exposed.end_ns - exposed.begin_ns)
    before = np.clip(arrived_ns - exposed.begin_ns, 0, length) / length * exposed.waited_ns
    unknown = (culprit < 0) & (exposed.waited_ns > 0)
    return Waiting(wait_ns=np.where(unknown, np.nan, before), culprit=culprit, collective=row)


def _deciding_collectives(table: Collectives, arrivals: Arrivals) -> dict[int, int]:
    """Per backward pass: row of the collective whose last arrival ended the waiting.

    A backward pass with a bucket that not all ranks were seen to issue is left out.
    """
    is_message = np.isin(table.op, POINT_TO_POINT)  # DDP waits for none of them
    rows = np.flatnonzero((table.graph_task >= 0) & (table.end_ns > 0) & ~is_message)
    tasks = table.graph_task[rows]
    order = np.argsort(tasks, kind="stable")  # rows are in order of issue already
    rows, tasks = rows[order], tasks[order]
    found: dict[int, int] = {}
    for part in np.split(rows, np.flatnonzero(np.diff(tasks)) + 1) if len(rows) else []:
        arrived_ns = arrivals.last_arrival_ns[part]
        if (arrived_ns == 0).any():
            continue
        wire_busy_until = np.concatenate(([0], np.maximum.accumulate(table.end_ns[part])[:-1]))
        idle_before = np.flatnonzero(arrived_ns >= wire_busy_until)
        found[int(table.graph_task[part[0]])] = int(part[idle_before[-1]])
    return found
