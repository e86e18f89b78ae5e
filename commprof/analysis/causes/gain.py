"""What a fix would win: the recorded steps, replayed without the calls that the fix removes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from commprof.analysis.causes.facts import Facts, Floats, Mask, RankCalls
from commprof.analysis.named_cause import Saving
from commprof.analysis.replay.engine import replay
from commprof.analysis.replay.gains import recorded_replays
from commprof.analysis.replay.program import WAIT, Program, own_times
from commprof.trace.columns import Ints
from commprof.trace.reader import Trace


@dataclass(frozen=True)
class Removed:
    """What a fix removes from one rank's recording."""

    #: Calls that are not made, over the rank's table.
    calls: Mask
    #: Begins and ends, in ns, of times that do not overlap and whose own work goes too.
    begin_ns: Ints
    end_ns: Ints

    @classmethod
    def whole(cls, calls: RankCalls, mask: Mask) -> Removed:
        """Removes the masked calls, with the thread's work from their issue until it went on."""
        rows = np.flatnonzero(mask & (calls.wait_end_ns > 0))
        begin, end = calls.table.issue_ns[rows], calls.wait_end_ns[rows]
        last = np.maximum.accumulate(end)
        begin = np.maximum(begin, np.append(0, last[:-1]))
        return cls(mask, begin, np.maximum(begin, last))


def saving_without(facts: Facts, removed: Sequence[Removed]) -> Saving | None:
    """Replays the steps without some calls of each rank; None if no replay is possible.

    A removed call takes no time, and nobody waits in it: ranks that were not there yet are waited
    for in the next call. ``removed`` has one entry per rank of ``facts``.
    """
    recorded = recorded_replays(facts.seen)
    if recorded is None:
        return None
    free = np.concatenate([each.calls for each in removed])
    steps = []
    for ranks, calls in recorded.stretches:
        changed = [
            _changed(rank, facts.seen.traces[place], removed[place], free)
            for place, rank in enumerate(ranks)
        ]
        times = replay(changed, calls, free=free)
        if times is None:
            return None
        steps.append(times)
    base = recorded.step_ns()
    if base is None:
        return None
    return Saving(recorded.saved(base, np.concatenate(steps)), "replayed")


def _changed(rank: Program, trace: Trace, removed: Removed, free: Mask) -> Program:
    waits = rank.kind == WAIT
    gone = np.zeros(len(rank.kind), dtype=bool)
    gone[waits] = free[rank.row[waits]]
    own = rank.own_ns - _lost(rank, trace, removed)
    kept = ~gone
    return replace(
        rank,
        own_ns=np.maximum.accumulate(own)[kept],
        kind=rank.kind[kept],
        row=rank.row[kept],
        extra_ns=rank.extra_ns[kept],
    )


def _lost(rank: Program, trace: Trace, removed: Removed) -> Floats:
    """Own time that goes before each event of the program."""
    if not len(removed.begin_ns):
        return np.zeros(len(rank.own_ns))
    order = np.argsort(removed.begin_ns, kind="stable")
    begin, end = (
        own_times(trace, rank.begin_ns, times[order])
        for times in (removed.begin_ns, removed.end_ns)
    )
    length = np.maximum(end - begin, 0.0)
    edges = np.stack([begin, begin + length], axis=1).reshape(-1)
    total = np.repeat(np.concatenate(([0.0], np.cumsum(length))), 2)[1:-1]
    lost: Floats = np.interp(rank.own_ns, edges, total, left=0.0)
    return lost
