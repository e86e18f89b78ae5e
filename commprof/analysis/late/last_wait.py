"""Finds a hang at the end of a recording: ranks waited for other ranks that did not arrive.

The hang is found from the records alone, without a watchdog. A rank's last collective either did
not end, or ended with an error after a long wait, for example because the user interrupted the job.
The ranks that did not arrive are found as in :mod:`commprof.analysis.late.standstill`.

If the job ran on several hosts, only collectives that ended with an error are used: a waiting rank
writes no records, and the clock of another host does not show how long the rank waited. Jobs on
devices are left out, because their collectives end on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from commprof.analysis.collectives.kinds import short_line
from commprof.analysis.late.standing import SILENT, OwnCall, PendingOperation, Words
from commprof.analysis.late.standstill import Accused, accused_of, find_cause, reasons, waits_of
from commprof.text import named_ranks
from commprof.trace import columns
from commprof.trace.columns import Collectives
from commprof.trace.documents import Group
from commprof.trace.lookup import among
from commprof.trace.packed import PackedRecords
from commprof.trace.reader import Trace
from commprof.trace.run.processes import State, state_of
from commprof.trace.schema import (
    FLAG_DEVICE_ASYNC,
    NO_SEQ,
    POINT_TO_POINT,
    ROOTED,
    Kind,
    Phase,
    op_name,
)

_NS_PER_S = 1e9
#: A wait is a hang if it takes at least ``_LEAST_S`` seconds and ``_OF_STEP`` typical steps.
_LEAST_S, _OF_STEP = 5.0, 10.0
_ALIVE = (State.RUNS, State.STOPPED)
#: This many of a rank's latest collectives are examined.
_LATEST = 256
#: The collectives are searched for in this many of a rank's last records.
_TAIL = 1 << 18


@dataclass(frozen=True)
class LastWait:
    """A hang with which a recording ends."""

    #: Ranks that the others waited for.
    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    #: Length of the longest wait.
    waited_s: float
    #: False if one of the awaited ranks wrote records during the wait. Always True for a job on
    #: several hosts.
    hung: bool
    #: Sentence that begins in lower case and has no full stop.
    sentence: str


@dataclass
class _End:
    """State of one rank at the end of its recording; implements ``Standing``."""

    rank: int
    world_size: int
    #: Line of code of the rank's last collective; empty if not known.
    line: str
    #: Phase and step in which the rank's records end.
    seen: str
    #: Longest wait in a collective that failed or did not end; 0 if no such wait is known.
    waited_ns: int = 0
    waits_in: PendingOperation | None = None
    pending: dict[int, PendingOperation] = field(default_factory=dict)
    next_seq: dict[str, int] = field(default_factory=dict)
    next_message: dict[tuple[str, str, int], int] = field(default_factory=dict)
    receives_any: frozenset[str] = frozenset()
    recent: tuple[OwnCall, ...] = ()
    groups: dict[str, Group] = field(default_factory=dict)


def last_wait(traces: Sequence[Trace], world_size: int) -> LastWait | None:
    """Finds the hang with which the recordings of a job's ranks end.

    Args:
        traces: the ranks' traces.
        world_size: number of ranks of the job.

    Returns:
        None if no such hang is found. Also None if a trace is missing, if records were dropped, if
        the job still runs or ran on devices, and for always-on mode and other profilers' traces.
    """
    if len(traces) != world_size or world_size < 2:
        return None
    if any(trace.recorded is not None or trace.summary is not None for trace in traces):
        return None
    if all(trace.complete and not _error(trace) for trace in traces):
        return None  # the job came to its regular end
    if any(not trace.complete and state_of(trace.metadata) in _ALIVE for trace in traces):
        return None  # the job still runs: the watchdog reports its hangs
    traces = [_tail(trace) for trace in traces]
    if any(trace.dropped or _on_device(trace) for trace in traces):
        return None
    hosts = {trace.metadata["machine"].get("hostname") for trace in traces}
    last_ns = max((_last_ns(trace) for trace in traces), default=0) if len(hosts) == 1 else 0
    limit_ns = _limit_ns(traces)
    ends = [_end(trace, world_size, last_ns) for trace in traces]
    longest = max(ends, key=lambda end: end.waited_ns)
    if longest.waited_ns < limit_ns or longest.waits_in is None:
        return None
    waits = waits_of(ends)
    cause = find_cause(ends, waits)
    if cause.kind == "unmatched" or not cause.ranks:
        return None
    by_rank = {end.rank: end for end in ends}
    words = Words()
    accused = accused_of(cause, waits, words, lambda rank: _absent(by_rank[rank]))
    waiting = tuple(e.rank for e in ends if e.waited_ns >= limit_ns and e.rank not in cause.ranks)
    if not waiting or longest.rank in cause.ranks:
        return None
    operation, seconds = longest.waits_in, longest.waited_ns / _NS_PER_S
    meanwhile = operation.issue_ns + _NS_PER_S, operation.issue_ns + longest.waited_ns - _NS_PER_S
    worked = any(
        trace.rank in cause.ranks and _wrote(trace, *meanwhile) for trace in traces if last_ns
    )
    where = f" ({operation.line})" if operation.line else ""
    beside = [by_rank[rank] for rank in waiting]
    if any(end.waits_in is not None and _key(end.waits_in) != _key(operation) for end in beside):
        where += " and other operations"
    is_range = longest.waited_ns - min(end.waited_ns for end in beside) >= _NS_PER_S
    return LastWait(
        cause.ranks,
        waiting,
        seconds,
        not worked,
        f"{'when the job was stopped' if worked else 'the job hung'}: {named_ranks(waiting)} had "
        f"waited for {named_ranks(cause.ranks)} in {operation}{where}, for "
        f"{'up to ' if is_range else ''}{seconds:.1f} s when the recording ended: "
        f"{'; '.join(reasons(accused))}",
    )


def _key(operation: PendingOperation) -> tuple[str, int, str]:
    return operation.group, operation.seq, operation.op


def _tail(trace: Trace) -> Trace:
    """Returns a trace with its last records only, because tables of all records are large."""
    records = trace.records
    if len(records) <= _TAIL:
        return trace
    if isinstance(records, PackedRecords):
        return replace(trace, records=records.latest(_TAIL))
    return replace(trace, records=records[-_TAIL:])


def _error(trace: Trace) -> str:
    return str((trace.metadata.get("ending") or {}).get("error") or "")


def _wrote(trace: Trace, since_ns: float, until_ns: float) -> bool:
    time_ns = columns.ints(trace.records["timestamp_ns"])
    return bool(((time_ns > since_ns) & (time_ns < until_ns)).any())


def _absent(end: _End) -> Accused:
    last = f"; its last call was at {end.line}" if end.line else ""
    several = f"; their last calls were at {end.line}" if end.line else ""
    return Accused(
        end.rank,
        f"did not arrive, and was last seen {end.seen}{last}",
        f"did not arrive, and were last seen {end.seen}{several}",
    )


def _on_device(trace: Trace) -> bool:
    issued = columns.of_kind(trace.records, Kind.ISSUE)
    return bool((columns.ints(issued["flags"]) & FLAG_DEVICE_ASYNC).any())


def _last_ns(trace: Trace) -> int:
    return int(trace.records["timestamp_ns"].max()) if len(trace.records) else 0


def _limit_ns(traces: Sequence[Trace]) -> float:
    typical = [
        float(np.median(columns.steps(trace).end_ns - columns.steps(trace).begin_ns))
        for trace in traces
        if _steps(trace)
    ]
    return max(_LEAST_S * _NS_PER_S, _OF_STEP * max(typical, default=0.0))


def _steps(trace: Trace) -> int:
    return len(columns.steps(trace))


def _end(trace: Trace, world_size: int, last_ns: int) -> _End:
    """Returns a rank's last state; ``last_ns`` is 0 if the ranks' clocks cannot be compared."""
    table = columns.collectives(trace)
    names = {group.id: group.name for group in trace.groups.values()}
    collective = ~among(table.op, *POINT_TO_POINT) & (table.seq != NO_SEQ)
    end = _End(trace.rank, world_size, "", _place(trace))
    end.groups = {group.name: group for group in trace.groups.values()}
    for number in np.unique(table.group[collective]).tolist():
        numbers = table.seq[collective & (table.group == number)]
        end.next_seq[names.get(number, f"number {number}")] = int(numbers.max()) + 1
    if len(table):
        end.line = _line(trace, table, len(table) - 1)
    first = max(0, len(table) - _LATEST)
    for row in range(first, len(table)):
        ended, failed = int(table.end_ns[row]), bool(table.failed[row])
        if not collective[row] or (ended and not failed):
            continue
        op = int(table.op[row])
        is_silent = op in SILENT
        operation = end.pending[int(table.op_id[row])] = PendingOperation(
            op=op_name(op),
            group=names.get(int(table.group[row]), f"number {int(table.group[row])}"),
            seq=int(table.seq[row]),
            peer=-1,
            bytes_in=int(table.bytes_in[row]),
            bytes_out=int(table.bytes_out[row]),
            issue_ns=int(table.issue_ns[row]),
            bucket=-1,
            in_backward=bool(table.graph_task[row] >= 0),
            silent=is_silent,
            root=int(table.peer[row]) if op in ROOTED else -1,
            path=_line(trace, table, row),
        )
        until = ended if failed else last_ns if not is_silent else 0
        waited = until - operation.issue_ns
        if waited > end.waited_ns:
            end.waited_ns, end.waits_in = waited, operation
    return end


def _line(trace: Trace, table: Collectives, row: int) -> str:
    """Returns the line that issued a row's call.

    If this call has no stack, an earlier call of the same kind and size is used. Empty if no such
    call has a stack.
    """
    alike = (table.op == table.op[row]) & (table.group == table.group[row])
    alike &= table.bytes_in == table.bytes_in[row]
    rows = np.flatnonzero(alike[: row + 1])
    if not trace.stacks:
        return ""
    stacks = columns.stacks(trace, table.op_id[rows])
    stacks = stacks[stacks > 0]
    return short_line(trace.stacks.get(int(stacks[-1]), ())) if len(stacks) else ""


def _place(trace: Trace) -> str:
    """Returns where a rank's records end, such as "in step 3 after backward"."""
    phases, steps = columns.phases(trace), columns.steps(trace)
    where = f"in step {int(steps.index[-1]) + 1}" if len(steps) else "before the end of a step"
    since = int(steps.end_ns[-1]) if len(steps) else 0
    done = np.flatnonzero(phases.end_ns > since)
    if not len(done):
        return where
    latest = Phase(int(phases.key[done[np.argmax(phases.end_ns[done])]]))
    return f"{where} after {latest.name.lower()}"
