"""A call begins once all of its ranks have issued it and its communicator is free.

A message begins once both of its ranks have issued it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.trace.columns import Ints
from tests.support.builders.exact.jobs import FINISH, ISSUE, WAIT, WORK, Call, Job, Op

#: A wait takes RETURNS_NS if its call has already ended. A finalisation takes FINISH_NS before its
#: first wait, and again after its last wait.
RETURNS_NS = 300
FINISH_NS = 10_000
#: A rank counts as standing in a wait of at least this time in ns.
STANDS_NS = 1000
_NEVER = np.int64(0)


@dataclass
class CallTimes:
    """The arrays are ``[step, rank]``, with 0 for ranks that take no part."""

    issue_ns: Ints
    last_ns: Ints
    last_rank: Ints
    free_ns: Ints
    #: The call runs from ``begin_ns`` to ``over_ns``, and the rank sees its end at ``end_ns``.
    begin_ns: Ints
    over_ns: Ints
    end_ns: Ints


@dataclass
class Times:
    #: ``begin_ns[role, operation]`` is an array ``[step, place]``, with the rank's place in the
    #: role.
    begin_ns: dict[tuple[int, int], Ints]
    end_ns: dict[tuple[int, int], Ints]
    #: Each FINISH has the begins and the ends of its waits, as arrays ``[call, step, place]``.
    stood_ns: dict[tuple[int, int], tuple[Ints, Ints]]
    calls: list[CallTimes]
    step_begin_ns: Ints
    step_end_ns: Ints

    @property
    def wall_ns(self) -> Ints:
        return self.step_end_ns - self.step_begin_ns


def simulate(job: Job) -> Times:
    shape = (job.steps, job.size)
    calls = [CallTimes(*(np.zeros(shape, dtype=np.int64) for _ in range(7))) for _ in job.calls]
    begin, end, stood = {}, {}, {}
    for r, role in enumerate(job.roles):
        for i, op in enumerate(role.ops):
            of_role = (job.steps, len(role.ranks))
            begin[r, i], end[r, i] = (np.zeros(of_role, dtype=np.int64) for _ in range(2))
            if op.kind == FINISH:
                stood[r, i] = (
                    np.zeros((len(op.calls), *of_role), dtype=np.int64),
                    np.zeros((len(op.calls), *of_role), dtype=np.int64),
                )
    times = Times(begin, end, stood, calls, *(np.zeros(shape, dtype=np.int64) for _ in range(2)))
    now = np.full(job.size, 10**10, dtype=np.int64)
    if len(job.begin_ns):
        now += job.begin_ns
    free = {(call.label, g): _NEVER for call in job.calls for g in range(len(call.groups))}
    order = list(_order(job))
    for step in range(job.steps):
        times.step_begin_ns[step] = now
        for r, i in order:
            op, ranks = job.roles[r].ops[i], job.roles[r].ranks
            before = now[ranks]
            begin[r, i][step] = before
            now[ranks] = _after(job, times, (step, r, i), op, before)
            end[r, i][step] = now[ranks]
            if op.kind == ISSUE:
                calls[op.call].issue_ns[step, ranks] = before
                _begin(job, calls[op.call], op.call, step, free)
        times.step_end_ns[step] = now
    return times


def _after(job: Job, times: Times, at: tuple[int, int, int], op: Op, now: Ints) -> Ints:
    step, r, i = at
    ranks = job.roles[r].ranks
    if op.kind == WORK:
        paused = job.pause_ns.get((r, i))
        done: Ints = now + job.work_ns[r, i][step]
        return done if paused is None else done + paused[step]
    if op.kind == WAIT:
        return np.maximum(now + RETURNS_NS, times.calls[op.call].end_ns[step, ranks])
    if op.kind == FINISH:
        now = now + FINISH_NS
        for k, call in enumerate(op.calls):
            first, last = times.stood_ns[r, i]
            first[k, step] = now
            now = np.maximum(now, times.calls[call].end_ns[step, ranks])
            last[k, step] = now
            now = now + job.copy_ns
        return now + FINISH_NS
    return now


def _begin(
    job: Job, times: CallTimes, number: int, step: int, free: dict[tuple[str, int], np.int64]
) -> None:
    call = job.calls[number]
    issue = times.issue_ns[step][call.groups]
    ready = np.flatnonzero((issue > 0).all(axis=1) & (times.over_ns[step][call.groups[:, 0]] == 0))
    for g in ready.tolist():
        members = call.groups[g]
        last = int(issue[g].argmax())
        idle = _NEVER if call.is_message else free[call.label, g]
        started = np.maximum(issue[g, last], idle)
        over = started + job.wire_ns[number][step, g]
        if not call.is_message:
            free[call.label, g] = over
        times.last_ns[step, members] = issue[g, last]
        times.last_rank[step, members] = members[last]
        times.free_ns[step, members] = idle
        times.begin_ns[step, members] = started
        times.over_ns[step, members] = over
        times.end_ns[step, members] = over + job.seen_after_ns[number][step, members]


def _order(job: Job) -> Iterator[tuple[int, int]]:
    at = [0] * len(job.roles)
    issued = [np.zeros(job.size, dtype=np.bool_) for _ in job.calls]
    while True:
        went_on = False
        for r, role in enumerate(job.roles):
            while at[r] < len(role.ops):
                op = role.ops[at[r]]
                if not all(_is_issued(job.calls[c], issued[c], role.ranks) for c in _awaited(op)):
                    break
                if op.kind == ISSUE:
                    issued[op.call][role.ranks] = True
                yield r, at[r]
                at[r] += 1
                went_on = True
        if not went_on:
            break
    assert all(i == len(role.ops) for i, role in zip(at, job.roles, strict=True)), "a deadlock"


def _awaited(op: Op) -> tuple[int, ...]:
    return op.calls if op.kind == FINISH else (op.call,) if op.kind == WAIT else ()


def _is_issued(call: Call, issued: npt.NDArray[np.bool_], ranks: Ints) -> bool:
    mine = np.isin(call.groups, ranks).any(axis=1)
    return bool(issued[call.groups[mine]].all())
