"""Follows the NCCL Inspector logs of a running job, and finds processes that make others wait.

A call is counted when all ranks have written it. Its records are then freed, so that memory does
not grow with the job. If a process writes nothing for much longer than usual, its ranks count as
missing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from commprof.analysis.inspector.communicators import (
    InspectedCommunicator,
    InspectedJob,
    Process,
    members_by_id,
    split_communicators,
)
from commprof.analysis.inspector.late_processes import LateProcess, late_processes
from commprof.analysis.inspector.origins import InspectedOrigins, WaitingGroup, groups_of, traced
from commprof.analysis.inspector.own_time import operation_time
from commprof.analysis.inspector.result import (
    KindRow,
    kind_rows,
    time_by_process,
    world_ranks,
)
from commprof.analysis.inspector.slower_processes import SlowerProcesses, slower_processes
from commprof.recordings.inspector_tail import InspectorTail, holds_logs
from commprof.text import counted

if TYPE_CHECKING:
    from commprof._reading import InspectorMember, InspectorWaits

Floats = npt.NDArray[np.float64]

#: The ranks of a process count as missing if the latest write of any process came ``_PATIENCE_S``
#: seconds, and ``_GAPS`` times the usual longest gap between two writes, after its own.
_PATIENCE_S: Final = 30.0
_GAPS: Final = 3.0
#: The test of late processes covers the last ``_MOST_PARTS`` parts of the run. A part ends when
#: every process that still writes has written ``_WRITES_A_PART`` times, or when all have stopped.
#: Processes write at different times, so in shorter parts communicators would advance unevenly.
_MOST_PARTS: Final = 200
_WRITES_A_PART: Final = 5
#: In a snapshot, each part of the run has at least this many calls, if possible.
_CALLS_A_PART: Final = 8
#: Largest number of processes for which waiting is kept for each pair of processes.
_MOST_PAIRS: Final = 2048
_MOST_KINDS: Final = 12


@dataclass(frozen=True)
class LiveProcess:
    """A process, with totals since the beginning of its log."""

    process: Process
    #: Rank in the communicator that all processes share; None if there is no such communicator.
    rank: int | None
    #: False if the process has written nothing for much longer than usual.
    writes: bool
    #: Time in collectives and messages whose waiting is known.
    time_s: float
    #: Part of ``time_s`` that is waiting.
    waited_s: float
    #: Waiting that this process caused, summed over the other processes. It does not include the
    #: current part of the run.
    caused_s: float
    #: The next three fields are ``time_s``, ``waited_s`` and ``caused_s`` in those parts of the run
    #: that ``InspectorState.late`` covers.
    recent_time_s: float
    recent_waited_s: float
    recent_caused_s: float


@dataclass(frozen=True)
class InspectorState:
    """A running job at one moment."""

    #: Seconds since the epoch.
    time_s: float
    processes: tuple[LiveProcess, ...]
    late: tuple[LateProcess, ...]
    #: Processes that work longer than all others, over the parts of the run that ``late`` covers;
    #: None if there are none, or if some are late.
    slower: SlowerProcesses | None
    communicators: int
    calls: int
    #: Number of records of these calls that are missing.
    lost_records: int
    #: Kinds of operations that took most time, among the operations that were counted last.
    kinds: tuple[KindRow, ...]
    #: Time since the latest write of any process.
    since_written_s: float
    #: True if records or ranks are missing, so that the true waiting may be longer.
    is_lower_bound: bool
    #: Caveats, as sentences without a full stop.
    problems: tuple[str, ...]

    @property
    def waited_for(self) -> frozenset[Process]:
        """The processes that make the others wait."""
        slower = () if self.slower is None else self.slower.processes
        return frozenset((*(late.process for late in self.late), *slower))


@dataclass
class _Part:
    #: Waiting in one part of the run. A snapshot has one ``_Part`` with several blocks.
    traced: InspectedOrigins
    time_us: Floats


@dataclass
class _Totals:
    time_us: Floats = field(default_factory=lambda: np.zeros(0))
    waited_us: Floats = field(default_factory=lambda: np.zeros(0))
    caused_us: Floats = field(default_factory=lambda: np.zeros(0))
    calls: int = 0
    lost: int = 0
    unmatched: int = 0


class _Growing:
    """Splits complete calls, and removes their records from the members."""

    def __init__(self, stopped: set[tuple[str, int]], is_snapshot: bool) -> None:
        """``stopped``: host and process id of each process that no longer writes."""
        self._stopped, self._is_snapshot = stopped, is_snapshot

    def collectives(
        self, members: Sequence[InspectorMember], kind: str, ranks: int, blocks: int
    ) -> InspectorWaits:
        from commprof._reading import inspector_take_collectives

        followed = [(member.host, member.pid) not in self._stopped for member in members]
        return inspector_take_collectives(members, followed, kind, ranks, blocks)

    def messages(self, members: Sequence[InspectorMember], blocks: int) -> InspectorWaits:
        from commprof._reading import inspector_take_messages

        return inspector_take_messages(members, blocks, self._is_snapshot)

    def unsplit(self, members: Sequence[InspectorMember], kind: str) -> InspectorWaits:
        from commprof._reading import inspector_take_unsplit

        return inspector_take_unsplit(members, kind)


class LiveLogs:
    """Follows the logs in one folder; not thread-safe."""

    def __init__(self, folder: Path, is_snapshot: bool = False) -> None:
        """``is_snapshot``: True to count the present content only, without waiting for writes."""
        self._tail = InspectorTail(folder)
        self._is_snapshot = is_snapshot
        self._processes: dict[Process, int] = {}
        self._totals = _Totals()
        self._recent: deque[_Part] = deque()
        #: Three rows, in µs over the parts in ``_recent``: time, waiting and caused waiting. Each
        #: process has a column.
        self._recent_us: Floats = np.zeros((3, 0))
        self._late: tuple[LateProcess, ...] = ()
        self._slower: SlowerProcesses | None = None
        #: Both ``_groups`` and ``_time_us`` cover only the current part of the run.
        self._groups: dict[tuple[str | int, ...], WaitingGroup] = {}
        self._time_us: Floats = np.zeros(0)
        #: Time of each process in all operations; empty unless the logs are read as a snapshot.
        self._operation_us: Floats = np.zeros(0)
        #: By log: how often the log had grown when the current part of the run began.
        self._growths: dict[Path, int] = {}
        self._pairs_us: Floats | None = np.zeros((0, 0))
        self._first_seen_s: dict[tuple[str, int], float] = {}
        self._newest: tuple[InspectedCommunicator, ...] = ()
        self._kinds: tuple[KindRow, ...] = ()
        #: Logs whose operations are counted.
        self._joined: set[Path] = set()
        self._left_out: list[str] = []

    @property
    def caught_up(self) -> bool:
        """True if the last look reached the end of every log."""
        return self._tail.caught_up

    @property
    def problems(self) -> list[str]:
        """Sentences about logs that are empty or cannot be read."""
        found = [*self._tail.problems, *self._left_out]
        if self._tail.empty:
            found.append(
                f"{counted(len(self._tail.empty), 'log')} without content: NCCL Inspector writes "
                "nothing before a communicator ends, unless "
                "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS is set for the job"
            )
        return found

    def look(self) -> InspectorState | None:
        """Reads new operations and returns the job's state; None before the first operation."""
        self._tail.look()
        if not self._is_snapshot or self._tail.caught_up:
            self._count()
        return self._state() if self._processes else None

    def _count(self) -> None:
        by_id, self._left_out = members_by_id(self._members())
        ready = {key: ranks for key, ranks in by_id.items() if self._is_ready(key, len(ranks))}
        pending = [
            count
            for ranks in ready.values()
            for member in ranks.values()
            for count, _ in member.kinds.values()
        ]
        if any(pending):
            blocks = 1
            if self._is_snapshot:
                blocks = min(_MOST_PARTS, max(1, max(pending) // _CALLS_A_PART))
            splitter = _Growing(self._stopped(), self._is_snapshot)
            self._newest = split_communicators(ready, self._processes, splitter, blocks)
            self._add(InspectedJob(tuple(self._processes), self._newest, blocks, ()))
        if self._groups and self._is_part_over():
            self._end_part()

    def _members(self) -> list[InspectorMember]:
        """Returns the members of all logs whose calls can be counted now.

        The calls of a process are counted in the order of its dumps. So a log is left out until all
        earlier logs of its process have been read to their ends.
        """
        logs = self._tail.logs
        unread = [log for log in logs.values() if not log.is_read]
        # If a log has no members yet, it is not known which process wrote the log.
        if all(log.log.members for log in unread):
            first_us: dict[tuple[str, int], int] = {}
            for log in unread:
                for member in log.log.members:
                    process = member.host, member.pid
                    dump_us = log.log.dumped_us[0]
                    first_us[process] = min(first_us.get(process, dump_us), dump_us)
            for path, log in logs.items():
                dump_us = log.log.dumped_us[0]
                if log.log.members and all(
                    dump_us <= first_us.get((member.host, member.pid), dump_us)
                    for member in log.log.members
                ):
                    self._joined.add(path)
        return [
            member
            for path, log in logs.items()
            if path in self._joined
            for member in log.log.members
        ]

    def _is_ready(self, key: tuple[str, int], recorded: int) -> bool:
        """True if all ranks of a communicator have written, or the missing ranks are overdue."""
        since_s = self._first_seen_s.setdefault(key, time.monotonic())
        is_late = time.monotonic() - since_s > self._patience_s()
        return recorded == key[1] or self._is_snapshot or is_late

    def _patience_s(self) -> float:
        gaps = [log.longest_gap_s for log in self._tail.logs.values()]
        return max(_PATIENCE_S, _GAPS * float(np.median(gaps)) if gaps else 0.0)

    def _stopped(self) -> set[tuple[str, int]]:
        grew_s: dict[tuple[str, int], float] = {}
        for log in self._tail.logs.values():
            for member in log.log.members:
                process = member.host, member.pid
                grew_s[process] = max(grew_s.get(process, 0.0), log.grew_s)
        newest_s = max(grew_s.values(), default=0.0)
        patience_s = self._patience_s()
        return {
            process
            for process, process_grew_s in grew_s.items()
            if self._is_snapshot or newest_s - process_grew_s > patience_s
        }

    def _add(self, job: InspectedJob) -> None:
        totals, count = self._totals, len(job.processes)
        if self._is_snapshot:
            # In a running job, communicators may have advanced unevenly, and then these times of
            # two processes cannot be compared.
            self._operation_us = operation_time(job)
        is_new = False
        for one in job.communicators:
            for waits in one.split:
                totals.calls += waits.calls
                totals.lost += waits.lost_records
                totals.unmatched += waits.unmatched_records
                is_new = is_new or waits.calls > 0
        if not is_new:
            return
        time_us = time_by_process(job, is_split=True)
        totals.time_us = _widened(totals.time_us, count) + time_us
        totals.waited_us = _widened(totals.waited_us, count)
        self._time_us = _widened(self._time_us, count) + time_us
        for group in groups_of(job):
            if group.is_known:
                np.add.at(totals.waited_us, group.process, group.waited.sum(axis=0))
            known = self._groups.get(group.key)
            if known is not None and np.array_equal(known.process, group.process):
                group = replace(
                    group,
                    caused=known.caused + group.caused,
                    waited=known.waited + group.waited,
                )
            self._groups[group.key] = group
        self._kinds = kind_rows(job.communicators)[:_MOST_KINDS]

    def _is_part_over(self) -> bool:
        if self._is_snapshot:
            return True
        newest_s = max(log.grew_s for log in self._tail.logs.values())
        if time.monotonic() - newest_s > self._patience_s():
            return True
        return all(
            log.growths - self._growths.get(path, 0) >= _WRITES_A_PART
            for path, log in self._tail.logs.items()
            if newest_s - log.grew_s <= self._patience_s()
        )

    def _end_part(self) -> None:
        count = len(self._processes)
        part = _Part(traced(list(self._groups.values()), count), self._time_us)
        self._totals.caused_us = _widened(self._totals.caused_us, count)
        self._totals.caused_us += part.traced.began_us.sum(axis=0)
        self._groups, self._time_us = {}, np.zeros(count)
        self._growths = {path: log.growths for path, log in self._tail.logs.items()}
        self._add_pairs(part, count)
        self._recent.append(part)
        while self._parts() - len(self._recent[0].traced.began_us) >= _MOST_PARTS:
            gone = self._recent.popleft().traced.began_us.sum()
            if self._pairs_us is not None and (left := self._pairs_us.sum()) > 0:
                # Only the sum over all parts is kept, so scaling replaces removing the oldest part.
                self._pairs_us *= max(0.0, 1 - gone / left)
        self._judge()

    def _add_pairs(self, part: _Part, count: int) -> None:
        if self._pairs_us is None or count > _MOST_PAIRS or part.traced.pairs_us is None:
            self._pairs_us = None
            return
        grown = np.zeros((count, count))
        before = len(self._pairs_us)
        grown[:before, :before] = self._pairs_us
        self._pairs_us = grown + part.traced.pairs_us

    def _parts(self) -> int:
        return sum(len(part.traced.began_us) for part in self._recent)

    def _judge(self) -> None:
        """Finds the processes that were late in the latest parts of the run."""
        count = len(self._processes)
        began, waited = (
            np.concatenate([_widened(getattr(part.traced, name), count) for part in self._recent])
            for name in ("began_us", "waited_us")
        )
        time_us = sum((_widened(part.time_us, count) for part in self._recent), np.zeros(count))
        operation_us = self._operation_us if len(self._operation_us) else np.full(count, np.nan)
        job = InspectedJob(tuple(self._processes), self._newest, self._parts(), ())
        found = InspectedOrigins(began, waited, self._pairs_us)
        # The processes write at different times, so a part's end may be off by one write.
        uneven = 0.0 if self._is_snapshot else 1 / _WRITES_A_PART
        self._late = late_processes(job, found, time_us, operation_us, uneven)
        self._slower = None
        if not self._late:
            self._slower = slower_processes(job, found, time_us, operation_us)
        self._recent_us = np.array([time_us, waited.sum(axis=0), began.sum(axis=0)])

    def _state(self) -> InspectorState:
        count, totals = len(self._processes), self._totals
        lasting = [
            _widened(total, count) / 1e6
            for total in (totals.time_us, totals.waited_us, totals.caused_us)
        ]
        figures = np.array([*lasting, *(_widened(self._recent_us, count) / 1e6)]).T.tolist()
        ranks = world_ranks(InspectedJob(tuple(self._processes), self._newest, 1, ()))
        stopped = self._stopped()
        missing = sum(one.missing for one in self._newest)
        newest_s = max((log.grew_s for log in self._tail.logs.values()), default=0.0)

        def process_writes(process: Process) -> bool:
            return self._is_snapshot or (process.host, process.pid) not in stopped

        return InspectorState(
            time_s=time.time(),
            processes=tuple(
                LiveProcess(process, ranks.get(place), process_writes(process), *figures[place])
                for process, place in self._processes.items()
            ),
            late=self._late,
            slower=self._slower,
            communicators=len(self._newest),
            calls=totals.calls,
            lost_records=totals.lost,
            kinds=self._kinds,
            since_written_s=max(0.0, time.monotonic() - newest_s),
            is_lower_bound=bool(missing or totals.lost),
            problems=(*self.problems, *self._caveats(missing)),
        )

    def _caveats(self, missing: int) -> list[str]:
        found = []
        if missing:
            found.append(
                f"{counted(missing, 'rank')} of communicators left no log: a rank without a log "
                "may be the late rank"
            )
        if self._totals.lost:
            found.append(
                f"{counted(self._totals.lost, 'record')} are missing, although other ranks "
                "recorded the same calls: the true waiting may be longer than shown"
            )
        if self._totals.unmatched:
            unmatched = counted(self._totals.unmatched, "record")
            found.append(f"left out: {unmatched} without a matching record on another rank")
        return found


def _widened(values: Floats, count: int) -> Floats:
    """Appends zeros to the last axis of ``values``, for processes that were found later."""
    wider = np.zeros((*values.shape[:-1], count))
    wider[..., : values.shape[-1]] = values
    return wider


def logs_in(folder: Path, is_snapshot: bool = False) -> LiveLogs | None:
    """Returns a reader of the logs in a folder; None if the folder holds no log."""
    return LiveLogs(folder, is_snapshot) if holds_logs(folder) else None
