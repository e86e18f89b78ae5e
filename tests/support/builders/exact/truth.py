"""The truth about a simulated job, from its schedule alone.

The rules are those of docs/reading.md. Neither recordings nor commprof's analyses are used.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from commprof.trace.columns import Ints
from commprof.trace.schema import PHASES
from tests.support.builders.exact.jobs import FINISH, ISSUE, WAIT, WORK, Job
from tests.support.builders.exact.simulation import STANDS_NS, Times

Floats = npt.NDArray[np.float64]

CAUSES = (*PHASES, "host pause", "transfer", "unknown")
_PAUSE, _TRANSFER, _UNKNOWN = range(len(PHASES), len(PHASES) + 3)
_WAITING = len(CAUSES)


@dataclass
class Truth:
    wait_ns: Floats
    transfer_ns: Floats
    #: ``caused_ns[step, rank, cause]`` sums the waiting for which ``rank`` and ``cause`` are to
    #: blame.
    caused_ns: Floats


@dataclass(frozen=True)
class _Wait:
    step: int
    rank: int
    begin_ns: int
    end_ns: int
    waiting: tuple[tuple[int, int], ...]
    wait_ns: int
    late: int
    arrived_ns: int
    #: ``call`` ended the waiting; the waiting rank had issued this call at ``own_ns``.
    call: int
    own_ns: int
    #: ``at`` is the position of this wait in its rank's program, counted over all steps.
    #: ``late_at`` is the position of the issue of ``call`` in the late rank's program.
    at: int
    late_at: int


@dataclass
class _Stop:
    at: int
    issue_ns: int
    begin_ns: int
    left_ns: int
    stood: bool
    group: int


@dataclass
class _Rank:
    done: list[tuple[int, int, int]] = field(default_factory=list)
    stops: dict[tuple[int, int], _Stop] = field(default_factory=dict)
    issued_at: dict[tuple[int, int], int] = field(default_factory=dict)
    stop_keys: list[tuple[int, int]] = field(default_factory=list)
    stop_at: list[int] = field(default_factory=list)
    edges: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    reached: Floats = field(default_factory=lambda: np.zeros(0))

    def close(self) -> None:
        self.stop_keys = sorted(self.stops, key=lambda key: self.stops[key].at)
        self.stop_at = [self.stops[key].at for key in self.stop_keys]
        begin, end, cause = np.array(sorted(self.done), dtype=np.int64).reshape(-1, 3).T
        length = np.zeros((len(begin) + 1, _WAITING + 1))
        length[np.arange(len(begin)) + 1, cause] = end - begin
        self.edges = np.stack([begin, end], axis=1).ravel()
        total = np.cumsum(length, axis=0)
        self.reached = np.repeat(total, 2, axis=0)[1:-1]

    def until(self, time_ns: int) -> Floats:
        """Returns the ns spent on each of CAUSES before ``time_ns``, followed by the waiting."""
        at = int(np.searchsorted(self.edges, time_ns, side="right"))
        if at == 0 or at == len(self.edges):
            ends: Floats = self.reached[0 if at == 0 else -1]
            return ends
        first, last = self.reached[at - 1], self.reached[at]
        part = (time_ns - self.edges[at - 1]) / max(1, self.edges[at] - self.edges[at - 1])
        reached: Floats = first + part * (last - first)
        return reached

    def spent(self, begin_ns: int, end_ns: int) -> Floats:
        return self.until(end_ns) - self.until(begin_ns)

    def done_in(self, stretch: _Stretch) -> Floats:
        """Returns the ns of a stretch by cause, ordered as in :meth:`until`.

        Waiting and transfer between the two middle times of the stretch are left out.
        """
        begin, stood, left, end = stretch
        time = self.spent(begin, end)
        not_counted = self.spent(stood, left)
        for cause in (_TRANSFER, _WAITING):
            time[cause] -= not_counted[cause]
        return time


def truth_of(job: Job, times: Times) -> Truth:
    shape = (job.steps, job.size)
    found = Truth(np.zeros(shape), np.zeros(shape), np.zeros((*shape, len(CAUSES))))
    ranks = [_Rank() for _ in range(job.size)]
    waits: list[_Wait] = []
    for r, role in enumerate(job.roles):
        for i, op in enumerate(role.ops):
            for step in range(job.steps):
                for place, rank in enumerate(role.ranks.tolist()):
                    at = step * len(role.ops) + i
                    if op.kind == ISSUE:
                        ranks[rank].issued_at[step, op.call] = at
                    elif op.kind == WORK:
                        _work(job, times, (r, i, step, place), ranks[rank])
    for r, role in enumerate(job.roles):
        for i, op in enumerate(role.ops):
            if op.kind in (WAIT, FINISH):
                waits.extend(_waits(job, times, (r, i), ranks, found))
    for each in ranks:
        each.close()
    waits.sort(key=lambda wait: wait.end_ns)
    _trace_back(job, waits, ranks, found)
    return found


def _work(job: Job, times: Times, at: tuple[int, int, int, int], rank: _Rank) -> None:
    r, i, step, place = at
    begin, end = (int(x[r, i][step, place]) for x in (times.begin_ns, times.end_ns))
    paused = job.pause_ns.get((r, i))
    if paused is not None and paused[step, place]:
        rank.done.append((begin, begin + int(paused[step, place]), _PAUSE))
        begin += int(paused[step, place])
    rank.done.append((begin, end, int(job.roles[r].ops[i].phase)))


def _waits(
    job: Job, times: Times, of: tuple[int, int], ranks: list[_Rank], found: Truth
) -> Iterator[_Wait]:
    """Yields the waits of operation ``of``, which is given by its role and its index.

    Also adds to ``ranks`` what the ranks did, and to ``found`` their waiting and transfer.
    """
    r, i = of
    role = job.roles[r]
    op = role.ops[i]
    calls = op.calls if op.kind == FINISH else (op.call,)
    for step in range(job.steps):
        for place, rank in enumerate(role.ranks.tolist()):
            begin, end = (int(x[of][step, place]) for x in (times.begin_ns, times.end_ns))
            if op.kind == FINISH:
                first, last = (x[:, step, place].tolist() for x in times.stood_ns[of])
            else:
                first, last = [begin], [min(end, max(begin, _end(times, calls[0], step, rank)))]
            deciding = calls[0]
            for call in calls:
                if times.calls[call].begin_ns[step, rank] > times.calls[call].free_ns[step, rank]:
                    deciding = call
            of_call = times.calls[deciding]
            arrived = int(of_call.last_ns[step, rank])
            late = int(of_call.last_rank[step, rank])
            waiting, me, done = [], ranks[rank], begin
            for a, b in zip(first, last, strict=True):
                turned = min(max(a, arrived), b)
                me.done.append((done, a, int(op.phase)))
                me.done.append((a, turned, _WAITING))
                me.done.append((turned, b, _TRANSFER))
                done = b
                if turned > a:
                    waiting.append((a, turned))
                found.transfer_ns[step, rank] += b - turned
            me.done.append((done, end, int(op.phase)))
            wait_ns = sum(b - a for a, b in waiting)
            found.wait_ns[step, rank] += wait_ns
            at = step * len(role.ops) + i
            if not job.calls[calls[-1]].is_message:
                left = max(_end(times, call, step, rank) for call in calls)
                stood = left - begin >= STANDS_NS
                left = min(left, end) if stood else end
                issue = int(times.calls[calls[-1]].issue_ns[step, rank])
                group = int(np.flatnonzero((job.calls[calls[-1]].groups == rank).any(axis=1))[0])
                me.stops[step, calls[-1]] = _Stop(at, issue, begin, left, stood, group)
            if wait_ns > 0:
                yield _Wait(
                    step,
                    rank,
                    first[0] if op.kind == FINISH else begin,
                    end,
                    tuple(waiting),
                    wait_ns,
                    late,
                    arrived,
                    deciding,
                    int(of_call.issue_ns[step, rank]),
                    at,
                    ranks[late].issued_at[step, deciding],
                )


def _end(times: Times, call: int, step: int, rank: int) -> int:
    return int(times.calls[call].end_ns[step, rank])


def _trace_back(job: Job, waits: list[_Wait], ranks: list[_Rank], found: Truth) -> None:
    moments = _moments(job, waits)
    of_rank: dict[int, list[int]] = defaultdict(list)
    parts: list[dict[tuple[int, int], float]] = []
    for number, wait in enumerate(waits):
        stretches = _compared(job, wait, ranks, moments)
        through, own, earlier = 0.0, {_UNKNOWN: 1.0}, []
        if stretches is not None:
            through, own = _excess(wait, ranks, stretches)
            earlier = _overlaps(waits, of_rank[wait.late], stretches[1])
        through = through if earlier else 0.0
        part = {(wait.late, cause): (1 - through) * share for cause, share in own.items()}
        total = sum(amount for _, amount in earlier)
        for other, amount in earlier:
            for cell, share in parts[other].items():
                part[cell] = part.get(cell, 0.0) + through * amount / total * share
        parts.append(part)
        of_rank[wait.rank].append(number)
        for (rank, cause), share in part.items():
            found.caused_ns[wait.step, rank, cause] += share * wait.wait_ns


#: The times are: begin of the stretch, begin and end of the rank's wait at the meeting with the
#: other rank, and end of the stretch.
_Stretch = tuple[int, int, int, int]
#: The waiting rank's stretch comes first, then the late rank's stretch.
_Stretches = tuple[_Stretch, _Stretch]


def _moments(job: Job, waits: list[_Wait]) -> dict[frozenset[int], Ints]:
    """Returns, for each pair of ranks, the arrivals at messages for which the other rank waited."""
    times: dict[frozenset[int], list[int]] = defaultdict(list)
    for wait in waits:
        if job.calls[wait.call].is_message:
            times[frozenset((wait.rank, wait.late))].append(wait.arrived_ns)
    return {pair: np.sort(np.array(found)) for pair, found in times.items()}


def _compared(
    job: Job, wait: _Wait, ranks: list[_Rank], moments: dict[frozenset[int], Ints]
) -> _Stretches | None:
    mine, late = ranks[wait.rank], ranks[wait.late]
    is_message = job.calls[wait.call].is_message
    end_ns = wait.begin_ns if is_message else min(wait.own_ns, wait.begin_ns)
    met_ns, found = -1, None
    before = bisect_left(late.stop_at, wait.late_at)
    for key in reversed(late.stop_keys[:before]):
        stop, other = late.stops[key], mine.stops.get(key)
        if other is None or other.group != stop.group or not (stop.stood or other.stood):
            continue
        if other.at >= wait.at:
            continue
        met_ns = stop.left_ns
        if stop.stood and other.stood:
            found = (
                (other.left_ns, other.left_ns, other.left_ns, end_ns),
                (stop.left_ns, stop.left_ns, stop.left_ns, wait.arrived_ns),
            )
        else:
            found = _since_issue(other, end_ns), _since_issue(stop, wait.arrived_ns)
        break
    times = moments.get(frozenset((wait.rank, wait.late)), np.zeros(0, dtype=np.int64))
    at = int(np.searchsorted(times, min(wait.begin_ns, wait.arrived_ns), side="right"))
    if at and times[at - 1] > met_ns:
        since = int(times[at - 1])
        found = (since, since, since, max(since, end_ns)), (since, since, since, wait.arrived_ns)
    return found


def _since_issue(stop: _Stop, end_ns: int) -> _Stretch:
    if not stop.stood:
        return stop.issue_ns, stop.issue_ns, stop.issue_ns, end_ns
    return stop.issue_ns, stop.begin_ns, stop.left_ns, end_ns


def _excess(
    wait: _Wait, ranks: list[_Rank], stretches: _Stretches
) -> tuple[float, dict[int, float]]:
    """Returns the share of a wait that the late rank passed on from third ranks.

    The shares of the causes in the rest of the wait follow; together they are 1.
    """
    excess = ranks[wait.late].done_in(stretches[1]) - ranks[wait.rank].done_in(stretches[0])
    longer = np.maximum(0.0, excess[:_WAITING])
    third, own = max(0.0, float(excess[_WAITING])), max(0.0, float(excess[:_WAITING].sum()))
    through = third / max(third + own, 1e-9)
    if longer.sum() <= 0.01 * wait.wait_ns:
        return through, {_UNKNOWN: 1.0}
    shares = longer / longer.sum()
    return through, {cause: float(shares[cause]) for cause in np.flatnonzero(shares).tolist()}


def _overlaps(waits: list[_Wait], numbers: list[int], stretch: _Stretch) -> list[tuple[int, float]]:
    """Returns the indices of earlier waits that overlap a stretch, with their overlaps in ns."""
    begin, stood, left, end = stretch
    found = []
    for number in reversed(numbers):
        if waits[number].end_ns <= begin:
            break
        amount = sum(
            max(0, min(b, until) - max(a, since))
            for a, b in waits[number].waiting
            for since, until in ((begin, stood), (left, end))
        )
        if amount > 0:
            found.append((number, float(amount)))
    return found
