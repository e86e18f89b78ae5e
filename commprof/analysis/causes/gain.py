"""Predicts the gain of a fix by a replay of the steps without some calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from commprof.analysis.causes.facts import Facts, Floats, Mask, RankCalls
from commprof.analysis.causes.helper_delays import delays_by
from commprof.analysis.named_cause import Saving
from commprof.analysis.replay.engine import ReplayedCalls, replay
from commprof.analysis.replay.program import WAIT, Program, own_times
from commprof.trace.columns import Ints
from commprof.trace.lookup import row_containing
from commprof.trace.stretches import gaps, stretches


@dataclass(frozen=True)
class Removed:
    """The calls and the work that a fix removes from one rank's recording."""

    #: Mask of the calls that the fix removes.
    calls: Mask
    #: Begins and ends, in ns, of intervals that do not overlap. The fix also removes the training
    #: thread's own work in these intervals.
    begin_ns: Ints
    end_ns: Ints
    #: True if the remaining calls carry the bytes of the removed calls.
    bytes_remain: bool = False

    @classmethod
    def only(cls, mask: Mask, bytes_remain: bool = False) -> Removed:
        """Removes the masked calls, but no work of the training thread."""
        none = np.zeros(0, dtype=np.int64)
        return cls(mask, none, none, bytes_remain)

    @classmethod
    def whole(cls, calls: RankCalls, mask: Mask, of_loop: bool = False) -> Removed:
        """Removes the masked calls, and the thread's work from each issue to the end of the wait.

        ``of_loop``: True to also remove the work between two masked calls, unless another call or a
        phase lies between them.
        """
        rows = np.flatnonzero(mask & (calls.wait_end_ns > 0))
        begin, end = calls.table.issue_ns[rows], calls.wait_end_ns[rows]
        if of_loop and len(rows):
            follows = (np.diff(rows) == 1) & (np.diff(calls.segment[rows]) == 0)
            follows &= np.diff(calls.step[rows]) == 0
            begin[1:][follows] = np.minimum(end[:-1], begin[1:])[follows]
        last = np.maximum.accumulate(end)
        begin = np.maximum(begin, np.append(0, last[:-1]))
        return cls(mask, begin, np.maximum(begin, last))

    @classmethod
    def with_noted(cls, calls: RankCalls, mask: Mask, noted: tuple[Ints, Ints]) -> Removed | None:
        """Removes the masked calls and the recorded work around them, such as FSDP's copies.

        Capture records such work only for a limited number of calls. For all other calls, the
        median time of the recorded work is removed. Returns None if no work was recorded for the
        masked calls.

        ``noted``: begins and ends of the intervals with the work, as ``Facts.noted_ns`` returns
        them.
        """
        rows = np.flatnonzero(mask)
        issue_ns = calls.table.issue_ns[rows]
        end_ns = np.maximum(calls.wait_end_ns[rows], issue_ns)
        of_work = row_containing(*noted, issue_ns)
        is_noted = of_work >= 0
        if not is_noted.any():
            return None
        begin_ns, until_ns = (times[of_work] for times in noted)
        before_ns, after_ns = (
            np.where(is_noted, ns, int(np.median(ns[is_noted])))
            for ns in (issue_ns - begin_ns, np.maximum(until_ns - end_ns, 0))
        )
        work = stretches(issue_ns - before_ns, end_ns + after_ns)
        return cls(mask, work.begin_ns, work.end_ns)


def saving_without(
    facts: Facts, removed: Sequence[Removed], transfer_ns: Sequence[Floats] | None = None
) -> Saving | None:
    """Replays the steps without the removed calls; None if no replay is possible.

    The ranks then wait for late ranks in the next call. The helper threads of removed calls no
    longer take a core from the training thread.

    Args:
        facts: facts about the job at one world size.
        removed: one entry per rank of ``facts``.
        transfer_ns: for each rank, new transfer times of its calls; NaN for calls that keep their
            time. None if all calls keep their time.
    """
    recorded = facts.replays
    if recorded is None:
        return None
    free = np.concatenate([of_rank.calls for of_rank in removed])
    steps = []
    for ranks, calls in recorded.stretches:
        changed = [
            _changed(rank, facts.ranks[position], removed[position], free)
            for position, rank in enumerate(ranks)
        ]
        times = replay(changed, _with(calls, transfer_ns), free=free)
        if times is None:
            return None
        steps.append(times)
    base = recorded.step_ns()
    if base is None:
        return None
    return Saving(recorded.saved(base, np.concatenate(steps)), "replayed")


def _with(calls: ReplayedCalls, transfer_ns: Sequence[Floats] | None) -> ReplayedCalls:
    if transfer_ns is None:
        return calls
    wanted = np.concatenate(list(transfer_ns))
    return replace(calls, transfer_ns=np.where(np.isnan(wanted), calls.transfer_ns, wanted))


def _changed(rank: Program, calls: RankCalls, removed: Removed, free: Mask) -> Program:
    waits = rank.kind == WAIT
    gone = np.zeros(len(rank.kind), dtype=bool)
    gone[waits] = free[rank.row[waits]]
    own_ns = rank.own_ns - _lost(rank, calls, removed)
    stays = ~gone
    return replace(
        rank,
        own_ns=np.maximum.accumulate(own_ns)[stays],
        kind=rank.kind[stays],
        row=rank.row[stays],
        extra_ns=rank.extra_ns[stays],
    )


def _lost(rank: Program, calls: RankCalls, removed: Removed) -> Floats:
    """Returns, for each event of ``rank``, the total own work that is removed before it, in ns."""
    whole = stretches(removed.begin_ns, removed.end_ns)
    delays = delays_by(calls, removed.calls, removed.bytes_remain).within(gaps(whole))
    lost = np.zeros(len(rank.own_ns))
    for spans, amount in ((whole, None), (delays.at, delays.amount)):
        if not len(spans):
            continue
        begin, end = (
            own_times(calls.trace, rank.begin_ns, times) for times in (spans.begin_ns, spans.end_ns)
        )
        length = np.maximum(end - begin, 0.0)
        edges = np.stack([begin, begin + length], axis=1).reshape(-1)
        gone = np.cumsum(length if amount is None else np.minimum(amount, length))
        total = np.repeat(np.concatenate(([0.0], gone)), 2)[1:-1]
        lost += np.interp(rank.own_ns, edges, total, left=0.0)
    return lost
