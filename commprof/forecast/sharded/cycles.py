"""Cycles of one rank's recorded steps: when the rank issues collectives and waits for them.

A cycle begins when the rank continues after the last wait of one step, and ends when the rank
continues after the last wait of the next step. Issues and waits usually have the same order in
every cycle. The times of issues and waits are own times. Own time is counted from the begin of the
cycle, by a clock that stops while the rank's training thread waits for communication.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.analysis.replay.engine import ReplayedCalls
from commprof.analysis.replay.program import ISSUE, MARK, STAND, WAIT, Program
from commprof.trace.schema import Phase

Floats = npt.NDArray[np.float64]
#: ISSUE or WAIT, and the index of the collective within its cycle.
Event = tuple[int, int]


@dataclass(frozen=True)
class RankCycle:
    """One step of one rank; times in ns."""

    #: Index among the replayed steps.
    step: int
    begin_ns: float
    end_ns: float
    #: Rows of the rank's collectives in the table of all ranks' calls, in order of issue.
    rows: tuple[int, ...]
    #: Issues and waits in order, with at most one wait per collective.
    events: tuple[Event, ...]
    #: Own time of each event. It includes the time blocked for an unknown reason.
    own_ns: tuple[float, ...]
    #: Part of each event's own time that the rank spent in the optimizer.
    update_ns: tuple[float, ...]
    #: For a wait: time from the collective's end until the thread continued. For an issue: 0.
    extra_ns: tuple[float, ...]


def rank_cycles(program: Program, calls: ReplayedCalls, steps: int) -> Iterator[RankCycle]:
    """Yields one rank's cycles.

    A step has no cycle if the step or the previous step has no wait. A step also has no cycle if
    the rank then waits for a collective of an earlier step.
    """
    walked = _walked(program, calls)
    last = _last_waits(program, steps)
    updated = _update_before(program)
    for step in range(1, steps):
        begin, end = last[step - 1], last[step]
        if begin >= 0 and end >= 0:
            cycle = _cycle(program, walked, (begin, end), step, updated)
            if cycle is not None:
                yield cycle


@dataclass(frozen=True)
class _Walked:
    """Recorded times of a program's events, in ns."""

    #: When the rank reached each event.
    at_ns: Floats
    #: When the rank continued after each event.
    went_on_ns: Floats
    #: Total time blocked for an unknown reason before each event.
    unknown_ns: Floats


def _walked(program: Program, calls: ReplayedCalls) -> _Walked:
    stood, unknown = float(program.begin_ns), 0.0
    at, went_on, unknown_at = [], [], []
    columns = (column.tolist() for column in (program.kind, program.row, program.extra_ns))
    for own_ns, kind, row, extra in zip(program.own_ns.tolist(), *columns, strict=True):
        now = own_ns + stood
        at.append(now)
        unknown_at.append(unknown)
        if kind == WAIT:
            stood += max(0.0, float(calls.end_ns[row]) + extra - now)
        elif kind == STAND:
            stood += extra
            unknown += extra
        went_on.append(own_ns + stood)
    return _Walked(np.array(at), np.array(went_on), np.array(unknown_at))


def _last_waits(program: Program, steps: int) -> list[int]:
    """Returns the event index of each step's last wait; -1 if the step has none."""
    marks = np.flatnonzero(program.kind == MARK)
    place = dict(zip(program.row[marks].tolist(), marks.tolist(), strict=True))
    waits = np.flatnonzero(program.kind == WAIT)
    last = []
    for step in range(steps):
        at = int(np.searchsorted(waits, place[2 * step + 1])) - 1
        inside = at >= 0 and waits[at] > place[2 * step]
        last.append(int(waits[at]) if inside else -1)
    return last


def _update_before(program: Program) -> Floats:
    """Returns the own time in ns that the rank has spent in the optimizer before each event."""
    length = np.diff(program.border_ns) * (program.border_phase == Phase.OPTIMIZER)
    total = np.concatenate(([0.0], np.cumsum(length)))
    result: Floats = np.interp(program.own_ns, program.border_ns, total)
    return result


def _cycle(
    program: Program, walked: _Walked, bounds: tuple[int, int], step: int, updated: Floats
) -> RankCycle | None:
    begin, end = bounds
    numbers: dict[int, int] = {}
    events: dict[Event, int] = {}
    for at in range(begin + 1, end + 1):
        kind, row = int(program.kind[at]), int(program.row[at])
        if kind == ISSUE:
            numbers[row] = len(numbers)
            events[ISSUE, numbers[row]] = at
        elif kind == WAIT and row not in numbers:
            return None  # the collective is of an earlier step
        elif kind == WAIT:
            events.setdefault((WAIT, numbers[row]), at)
    places = np.array([*events.values()], dtype=np.int64)
    own_ns = program.own_ns[places] - program.own_ns[begin]
    stands = walked.unknown_ns[places] - walked.unknown_ns[begin]
    waited = walked.went_on_ns[places] - walked.at_ns[places]
    return RankCycle(
        step=step,
        begin_ns=float(walked.went_on_ns[begin]),
        end_ns=float(walked.went_on_ns[end]),
        rows=tuple(numbers),
        events=tuple(events),
        own_ns=tuple((own_ns + stands).tolist()),
        update_ns=tuple((updated[places] - updated[begin]).tolist()),
        # Limited to the wait's duration, because the collective may have ended before the wait.
        extra_ns=tuple(np.minimum(program.extra_ns[places], waited).tolist()),
    )
