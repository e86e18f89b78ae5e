"""When the training thread waited for communication, and for which collective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commprof.trace.columns import Collectives, Finalizations, Ints, Spans

#: Halvings of the interval that holds DDP's copy speed; 50 leave 1e-15 of it.
_BISECTIONS = 50


@dataclass(frozen=True)
class Exposures:
    """Stretches in which one thread waited."""

    #: Row of the collective waited for; -1 where not known.
    collective: Ints
    #: Backward pass whose finalisation waited; -1 for a ``Work.wait``.
    graph_task: Ints
    begin_ns: Ints
    end_ns: Ints
    #: Time waited in the stretch; not more than ``end_ns - begin_ns`` but for clock noise.
    waited_ns: npt.NDArray[np.float64]

    def __len__(self) -> int:
        """Number of stretches."""
        return len(self.collective)


def exposures(
    table: Collectives, waits: Spans, finalizations: Finalizations, thread: int
) -> Exposures:
    """All waiting of ``thread``: in ``Work.wait`` and in DDP's finalisation.

    A finalisation's total is measured (wall time less thread CPU time). It is
    shared out over the buckets by replaying DDP's loop, which waits for each bucket in turn
    and copies it back; the copy speed is chosen so that the replay's waiting adds up to the
    measured total.
    """
    rows: list[_Row] = []
    order = np.argsort(table.op_id, kind="stable")
    for i in np.flatnonzero(waits.thread == thread):
        at = int(np.searchsorted(table.op_id[order], waits.key[i]))
        known = at < len(order) and table.op_id[order[at]] == waits.key[i]
        begin, end = int(waits.begin_ns[i]), int(waits.end_ns[i])
        rows.append(_Row(int(order[at]) if known else -1, -1, begin, end, float(end - begin)))
    span = finalizations.span
    for i in np.flatnonzero(span.thread == thread):
        begin, end = int(span.begin_ns[i]), int(span.end_ns[i])
        inside = (waits.thread == thread) & (waits.begin_ns >= begin) & (waits.end_ns <= end)
        counted = int((waits.end_ns[inside] - waits.begin_ns[inside]).sum())
        blocked = max(0, int(finalizations.blocked_ns[i]) - counted)
        rows.extend(_share(table, int(span.key[i]), begin, end, blocked))
    rows.sort(key=lambda row: row.begin_ns)
    return Exposures(
        collective=np.array([row.collective for row in rows], dtype=np.int64),
        graph_task=np.array([row.graph_task for row in rows], dtype=np.int64),
        begin_ns=np.array([row.begin_ns for row in rows], dtype=np.int64),
        end_ns=np.array([row.end_ns for row in rows], dtype=np.int64),
        waited_ns=np.array([row.waited_ns for row in rows], dtype=np.float64),
    )


class _Row(NamedTuple):
    """One row of ``Exposures``."""

    collective: int
    graph_task: int
    begin_ns: int
    end_ns: int
    waited_ns: float


def _share(
    table: Collectives, graph_task: int, begin_ns: int, end_ns: int, blocked_ns: int
) -> list[_Row]:
    """Shares ``blocked_ns`` of one finalisation over its buckets."""
    if blocked_ns == 0:
        return []
    buckets = np.flatnonzero((table.graph_task == graph_task) & (table.end_ns > 0))
    ends = np.minimum(table.end_ns[buckets], end_ns)
    stretches = _replay(begin_ns, ends, table.bytes_in[buckets], 0.0)
    if stretches.sum() > blocked_ns:
        slow = (end_ns - begin_ns) / max(1, int(table.bytes_in[buckets].sum()))
        fast = 0.0
        for _ in range(_BISECTIONS):
            middle = (slow + fast) / 2
            if _replay(begin_ns, ends, table.bytes_in[buckets], middle).sum() > blocked_ns:
                fast = middle
            else:
                slow = middle
        stretches = _replay(begin_ns, ends, table.bytes_in[buckets], slow)
    total = stretches.sum()
    if total <= 0:
        return [_Row(-1, graph_task, begin_ns, end_ns, float(blocked_ns))]
    return [
        _Row(
            int(bucket),
            graph_task,
            int(end - stretch),
            int(end),
            float(stretch * blocked_ns / total),
        )
        for bucket, end, stretch in zip(buckets, ends, stretches, strict=True)
        if stretch > 0
    ]


def _replay(
    begin_ns: int, ends: Ints, sizes: Ints, copy_ns_per_byte: float
) -> npt.NDArray[np.float64]:
    """DDP's finalisation loop: how long it waits for each bucket."""
    now = float(begin_ns)
    waited = np.zeros(len(ends))
    for i, (end, size) in enumerate(zip(ends, sizes, strict=True)):
        waited[i] = max(0.0, float(end) - now)
        now = max(now, float(end)) + copy_ns_per_byte * float(size)
    return waited
