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

from commprof.analysis.late.arrivals import Arrivals, SharedCalls, last_before
from commprof.analysis.late.stragglers import LateRank
from commprof.analysis.step.exposure import ORIGINS, Exposures, exposures_of, pauses
from commprof.analysis.step.waiting import split
from commprof.trace import columns
from commprof.trace.columns import Collectives, Ints
from commprof.trace.reader import Trace
from commprof.trace.schema import Phase
from commprof.trace.stretches import Stretches, covered, outside, stretches, within

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
    tables, arrivals, exposed = zip(*((r.table, r.arrivals, r.exposed) for r in ranks), strict=True)
    shared = SharedCalls(tables, arrivals, exposed)
    waited_ns = _waited_for(late, ranks, steps, shared.count)
    decided = np.flatnonzero(waited_ns > 0)
    parts, weights = [], []
    for key in np.unique(shared.members[decided]):
        number = decided[shared.members[decided] == key]
        places = [i for i in range(len(ranks)) if shared.has(i, number[:1])[0]]
        rows, explained = _explained_in(late, [ranks[i] for i in places], places, number, shared)
        parts.append(explained)
        weights.append(waited_ns[number[rows]])
    if not sum(map(len, weights)):
        return None
    return np.average(np.concatenate(parts), axis=0, weights=np.concatenate(weights))


def _explained_in(
    late: int, ranks: Sequence[RankView], places: Sequence[int], number: Ints, shared: SharedCalls
) -> tuple[Ints, Floats]:
    """In collectives of the same ranks: rows that can be explained, and ``[row, origin]``."""
    arrived_ns = np.stack([shared.arrived_ns(place, number) for place in places])
    synced_ns = last_before(shared.synchronised_ns(*places), arrived_ns.min(axis=0))
    is_late = np.array([r.rank == late for r in ranks])
    lateness_ns = arrived_ns[is_late][0] - np.median(arrived_ns[~is_late], axis=0)
    rows = np.flatnonzero((synced_ns > 0) & (lateness_ns > 0))
    spent = np.stack([_spent(r, synced_ns[rows], arrived_ns[i, rows]) for i, r in enumerate(ranks)])
    excess = spent[is_late][0] - np.median(spent[~is_late], axis=0)
    return rows, np.clip(excess / lateness_ns[rows, np.newaxis], 0, 1)


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
        span = covered(first[declared], last[declared], None, begin_ns, end_ns)
        spent[:, phase] = span - covered(
            exposed.begin_ns[waited],
            exposed.end_ns[waited],
            exposed.waited_ns[waited],
            begin_ns,
            end_ns,
        )
        stood = within(paused, stretches(first[declared], last[declared]))
        spent[:, phase] -= _length(stood, begin_ns, end_ns)
    undeclared = (end_ns - begin_ns) - covered(first, last, None, begin_ns, end_ns)
    stood = outside(paused, declared_at)
    spent[:, Phase.OTHER] += undeclared - _length(stood, begin_ns, end_ns)
    spent[:, -1] = _length(paused, begin_ns, end_ns)
    return spent


def _length(some: Stretches, begin_ns: Ints, end_ns: Ints) -> Floats:
    """Per window how much of it they cover."""
    return covered(some.begin_ns, some.end_ns, None, begin_ns, end_ns)
