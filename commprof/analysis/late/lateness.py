"""In which phase a late rank lost its time, or whether its process did not run.

The ranks last ran side by side at the end of a collective that training threads waited for.
From there to the collective that the others had to wait for, every rank's time is split into
phases, and pauses of its process apart from them; what the late rank spent in each beyond the
median of the others is where it fell behind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.analysis.late.arrivals import Arrivals
from commprof.analysis.late.stragglers import LateRank
from commprof.analysis.step.exposure import Exposures, exposures_of
from commprof.analysis.step.pauses import ORIGINS, pauses
from commprof.analysis.step.waiting import split
from commprof.trace import columns
from commprof.trace.columns import Collectives, Ints
from commprof.trace.reader import Trace
from commprof.trace.schema import Phase
from commprof.trace.stretches import Stretches, outside, stretches, within

Floats = npt.NDArray[np.float64]

#: A phase is named if it explains at least this part of the waiting.
_MOST = 0.5


@dataclass(frozen=True)
class RankView:
    """One rank as the question needs it."""

    rank: int
    trace: Trace
    table: Collectives
    arrivals: Arrivals
    exposed: Exposures
    #: Of its process, outside of this waiting.
    paused: Stretches
    thread: int


def view(trace: Trace, table: Collectives, arrivals: Arrivals) -> RankView:
    """Gathers what the traces say about one rank's training thread."""
    steps = columns.steps(trace)
    thread = int(steps.thread[0]) if len(steps) else 0
    exposed = exposures_of(trace)
    paused = pauses(trace, exposed)
    return RankView(trace.rank, trace, table, arrivals, exposed, paused, thread)


def views(
    traces: Sequence[Trace], tables: Sequence[Collectives], arrivals: Sequence[Arrivals | None]
) -> list[RankView]:
    """Those of all ranks whose arrivals are known."""
    return [
        view(trace, table, arrival)
        for trace, table, arrival in zip(traces, tables, arrivals, strict=True)
        if arrival is not None
    ]


def with_phase(late: LateRank, ranks: Sequence[RankView], steps: Ints) -> LateRank:
    """The same finding with what the rank's lateness came from, where that can be told.

    Args:
        late: the rank and what it cost.
        ranks: every rank, on one clock.
        steps: numbers of the measured steps.
    """
    explained = _explained(late.rank, ranks, steps)
    if explained is None:
        return late
    best = int(np.argmax(explained))
    share = float(explained[best])
    return dataclasses.replace(
        late, phase=ORIGINS[best] if share >= _MOST else None, phase_share=share
    )


def _explained(late: int, ranks: Sequence[RankView], steps: Ints) -> Floats | None:
    """Per origin the part of the waiting that it explains; None if no waiting can be explained.

    Each deciding collective counts as much as the waiting that it decided. In it an origin
    explains its excess over the rank's lateness, not less than 0 and not more than 1.
    """
    count = 1 + max(
        (
            int(numbers.max(initial=-1))
            for r in ranks
            for numbers in (r.arrivals.collective, r.arrivals.buckets.number)
        ),
        default=-1,
    )
    issue_ns, end_ns = _times(ranks, count)
    waited_ns = _waited_for(late, ranks, steps, count)
    synced_ns = _last_synchronised(_synchronised(ranks, end_ns), issue_ns.min(axis=0))
    rows = np.flatnonzero((waited_ns > 0) & (synced_ns > 0) & (issue_ns.min(axis=0) > 0))
    is_late = np.array([r.rank == late for r in ranks])
    own_ns = issue_ns[is_late][0][rows]
    lateness_ns = own_ns - np.median(issue_ns[~is_late][:, rows], axis=0)
    rows, lateness_ns = rows[lateness_ns > 0], lateness_ns[lateness_ns > 0]
    if len(rows) == 0:
        return None
    spent = np.stack([_spent(r, synced_ns[rows], issue_ns[i, rows]) for i, r in enumerate(ranks)])
    excess = spent[is_late][0] - np.median(spent[~is_late], axis=0)
    parts = np.clip(excess / lateness_ns[:, np.newaxis], 0, 1)
    return np.average(parts, axis=0, weights=waited_ns[rows])


def _times(ranks: Sequence[RankView], count: int) -> tuple[Ints, Ints]:
    """``[rank, collective or bucket]``: arrival and end; 0 where the rank was not seen in it."""
    issue_ns = np.zeros((len(ranks), count), dtype=np.int64)
    end_ns = np.zeros((len(ranks), count), dtype=np.int64)
    for i, rank in enumerate(ranks):
        seen = rank.arrivals.collective >= 0
        issue_ns[i, rank.arrivals.collective[seen]] = rank.table.issue_ns[seen]
        end_ns[i, rank.arrivals.collective[seen]] = rank.table.end_ns[seen]
        buckets = rank.arrivals.buckets
        seen = buckets.number >= 0
        issue_ns[i, buckets.number[seen]] = buckets.ready_ns[seen]
        end_ns[i, buckets.number[seen]] = buckets.end_ns[seen]
    return issue_ns, end_ns


def _waited_for(late: int, ranks: Sequence[RankView], steps: Ints, count: int) -> Floats:
    """Per collective the other ranks' waiting in the given steps that the late rank decided."""
    total = np.zeros(count)
    for rank in ranks:
        if rank.rank == late:
            continue
        waiting = split(rank.exposed, rank.table, rank.arrivals)
        chosen = (waiting.culprit == late) & (waiting.wait_ns > 0)
        chosen &= _in_steps(rank.trace, rank.exposed.begin_ns, steps)
        member = waiting.number[chosen]
        np.add.at(total, member[member >= 0], waiting.wait_ns[chosen][member >= 0])
    return total


def _in_steps(trace: Trace, time_ns: Ints, steps: Ints) -> npt.NDArray[np.bool_]:
    found = columns.steps(trace)
    if len(found) == 0:
        return np.zeros(len(time_ns), dtype=np.bool_)
    row = np.searchsorted(found.begin_ns, time_ns, side="right") - 1
    inside = (row >= 0) & (time_ns < found.end_ns[row])
    return inside & np.isin(found.index[row], steps)


def _synchronised(ranks: Sequence[RankView], end_ns: Ints) -> Ints:
    """Ends, in order, of the collectives of all ranks that some training thread waited for.

    At such an end nobody is past the place where he waits, and those who waited are at it.
    """
    awaited = np.zeros(end_ns.shape[1], dtype=np.bool_)
    for rank in ranks:
        rows = rank.exposed.collective[
            (rank.exposed.waited_ns > 0) & (rank.exposed.collective >= 0)
        ]
        member = rank.arrivals.collective[rows]
        awaited[member[member >= 0]] = True
        last = _last_buckets(rank)
        awaited[last[last >= 0]] = True
    return np.sort(end_ns.max(axis=0)[awaited & (end_ns > 0).all(axis=0)])


def _last_buckets(rank: RankView) -> Ints:
    """Numbers of the buckets that were done last in the backward passes that waited for theirs."""
    buckets = rank.arrivals.buckets
    waited = rank.exposed.graph_task[rank.exposed.waited_ns > 0]
    order = np.argsort(buckets.end_ns, kind="stable")
    order = order[np.isin(buckets.graph_task[order], waited) & (buckets.graph_task[order] >= 0)]
    last = dict(
        zip(buckets.graph_task[order].tolist(), buckets.number[order].tolist(), strict=True)
    )
    return np.array(list(last.values()), dtype=np.int64)


def _last_synchronised(synchronised_ns: Ints, before_ns: Ints) -> Ints:
    """For each time the last of the given ones that is not after it; 0 without one."""
    at = np.searchsorted(synchronised_ns, before_ns, side="right")
    return np.concatenate(([0], synchronised_ns))[at]


def _spent(rank: RankView, begin_ns: Ints, end_ns: Ints) -> Floats:
    """``[window, origin]``: the training thread's time without its waiting; pauses in no phase."""
    phases = columns.phases(rank.trace)
    mine = (phases.thread == rank.thread) & (phases.key < len(Phase))
    key, first, last = phases.key[mine], phases.begin_ns[mine], phases.end_ns[mine]
    exposed = rank.exposed
    row = np.searchsorted(first, exposed.begin_ns, side="right") - 1
    inside = row >= 0
    inside[inside] = exposed.begin_ns[inside] < last[row[inside]]
    waiting = np.where(inside, key[row] if len(key) else 0, int(Phase.OTHER))
    paused, declared_at = rank.paused, stretches(first, last)
    spent = np.zeros((len(begin_ns), len(ORIGINS)))
    for phase in range(len(Phase)):
        declared, waited = key == phase, waiting == phase
        span = _covered(first[declared], last[declared], None, begin_ns, end_ns)
        spent[:, phase] = span - _covered(
            exposed.begin_ns[waited],
            exposed.end_ns[waited],
            exposed.waited_ns[waited],
            begin_ns,
            end_ns,
        )
        stood = within(paused, stretches(first[declared], last[declared]))
        spent[:, phase] -= _length(stood, begin_ns, end_ns)
    undeclared = (end_ns - begin_ns) - _covered(first, last, None, begin_ns, end_ns)
    stood = outside(paused, declared_at)
    spent[:, Phase.OTHER] += undeclared - _length(stood, begin_ns, end_ns)
    spent[:, -1] = _length(paused, begin_ns, end_ns)
    return spent


def _length(some: Stretches, begin_ns: Ints, end_ns: Ints) -> Floats:
    """Per window how much of it they cover."""
    return _covered(some.begin_ns, some.end_ns, None, begin_ns, end_ns)


def _covered(
    first_ns: Ints, last_ns: Ints, amount_ns: Floats | None, begin_ns: Ints, end_ns: Ints
) -> Floats:
    """Per window what lies in it of the stretches; each holds its length, or the amount given."""
    if len(first_ns) == 0:
        return np.zeros(len(begin_ns))
    amount = (last_ns - first_ns).astype(np.float64) if amount_ns is None else amount_ns
    total = np.cumsum(amount)
    at = np.stack([first_ns, last_ns], axis=1).ravel().astype(np.float64)
    reached = np.stack([total - amount, total], axis=1).ravel()
    result: Floats = np.interp(end_ns, at, reached) - np.interp(begin_ns, at, reached)
    return result
