"""Reads a running job's traces, processes and host; each look returns a :class:`JobState`."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from commprof.analysis.collectives.compression import compression_rows
from commprof.analysis.summaries import SummaryPart, rank_part
from commprof.files import checked, open_regular
from commprof.monitor.figures.recent import RecentOperations, RecentSteps
from commprof.monitor.figures.steps import SETTLED_NS, NewSteps, StepFollower
from commprof.monitor.figures.summarised import Summaries, late_in
from commprof.monitor.follow import JobTail, TraceTail, newest_job, written_ns
from commprof.monitor.hosts import OtherHosts, waited_for_s
from commprof.monitor.state import (
    ArrivalState,
    GradientState,
    HostState,
    JobState,
    Late,
    MonitorState,
    ProcessState,
    RankState,
)
from commprof.satellites import ExpectedTime
from commprof.text import with_ranks
from commprof.trace.reader import Trace
from commprof.trace.run.processes import PROC, TICKS_PER_S, Here, State, stat_of, text_of
from commprof.trace.schema import OPS, RECORD_DTYPE, Kind
from commprof.units import ns_to_s

#: Columns of the first line of ``/proc/stat``.
_IDLE, _IOWAIT = 3, 4
_OURS: Final = "commprof-"
_MOST_INTERFACES: Final = 64


def rank_process(here: Here, metadata: dict[str, Any]) -> tuple[ProcessState | None, bool | None]:
    """Returns a rank's process, and True if the process lives.

    The process is None if dead or unknown. The second value is None if unknown.
    """
    state, found = here.find(metadata)
    if found is None:
        return None, None if state is State.UNKNOWN else False
    helpers_cpu_s = _helpers_cpu_s(PROC / str(metadata["pid"]))
    return ProcessState(found.cpu_s, found.resident_bytes, helpers_cpu_s), True


def this_host(proc: Path = PROC) -> HostState | None:
    """Reads this host's load from procfs; None if procfs lacks a value."""
    words = text_of(proc / "stat").split("\n", 1)[0].split()[1:9]
    memory = dict(
        line.split(":", 1) for line in text_of(proc / "meminfo").splitlines() if ":" in line
    )
    try:
        ticks = [int(word) for word in words]
        idle = ticks[_IDLE] + ticks[_IOWAIT]
        total, available = (
            int(memory[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable")
        )
    except (KeyError, IndexError, ValueError):
        return None
    busy = sum(ticks) - idle
    interfaces = _interfaces(text_of(proc / "net/dev"))
    name = socket.gethostname()
    return HostState(name, busy / TICKS_PER_S, idle / TICKS_PER_S, total, available, interfaces)


def own_process() -> tuple[float, int]:
    """Returns this process's CPU time in seconds and its resident bytes."""
    status = stat_of("self")
    times = os.times()
    return times.user + times.system, 0 if status is None else status.resident_bytes


def _helpers_cpu_s(directory: Path) -> float:
    nanoseconds = 0
    tasks = f"{directory}/task"
    try:
        threads = os.listdir(tasks)
    except OSError:
        return 0.0
    for thread in threads:
        if text_of(f"{tasks}/{thread}/comm").startswith(_OURS):
            nanoseconds += int((text_of(f"{tasks}/{thread}/schedstat").split() or ["0"])[0])
    return nanoseconds / 1e9


def _interfaces(text: str) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for line in text.splitlines()[2:]:
        name, _, counters = line.partition(":")
        words = counters.split()
        if len(words) >= 9 and len(found) < _MOST_INTERFACES:
            found[name.strip()] = (int(words[0]), int(words[8]))
    return found


#: When a trace is opened, records before the last ``_RECENT_BYTES`` bytes are skipped.
_RECENT_BYTES: Final = 16 << 20
_MOST_PROBLEMS: Final = 20
#: A rank whose process is unknown counts as running for this time after its last write.
_QUIET_NS: Final = 10_000_000_000
#: Time to wait for the traces of all ranks. After that, steps are counted without missing ranks.
PATIENCE_S: Final = 5.0


@dataclass(frozen=True)
class Following:
    """Which ranks an observer follows, and when their records count as complete."""

    #: The one rank to follow; None to follow all.
    only_rank: int | None = None
    #: Records that are this much older than a rank's newest record count as complete.
    settled_ns: int = SETTLED_NS


class Observer:
    """Reads one run directory. Only :meth:`publish` writes a file.

    If the directory holds several jobs, the job whose traces were written last is followed until
    all its ranks have ended.
    """

    def __init__(
        self,
        run: Path,
        expected_s: ExpectedTime | None = None,
        *,
        nested: bool = True,
        patience_s: float = PATIENCE_S,
        following: Following = Following(),
        is_monitor: bool = False,
        here: Here | None = None,
    ) -> None:
        """Reads nothing yet.

        Args:
            run: the run directory.
            expected_s: predicts the time of a call from a machine profile; None without a profile.
            nested: True to look for jobs in the subdirectories of ``run`` too.
            patience_s: time to wait for ranks whose traces do not exist yet.
            following: the ranks to follow, and the age at which records count as complete.
            is_monitor: True for the monitor of a host, which always follows this host's ranks.
            here: this host; None to find out.
        """
        self._run = run
        self._expected_s = expected_s
        self._nested = nested
        self._patience_s = patience_s
        self._following = following
        self._here = here or Here()
        self._is_monitor = is_monitor
        self._hosts: OtherHosts | None = None
        self._newest: JobState | None = None
        self._job: JobTail | None = None
        self._world: FollowedTraces | None = None
        self._problems: deque[str] = deque(maxlen=_MOST_PROBLEMS)

    def poll(self) -> JobState | None:
        """Reads new records and returns the job's state; None before any rank has recorded."""
        begin = time.perf_counter()
        if not self._job_runs():
            directory = newest_job(self._run, self._nested)
            if directory is not None and (self._job is None or self._job.directory != directory):
                self.close()
                self._job, self._world = (
                    JobTail(directory, _RECENT_BYTES, self._following.only_rank),
                    None,
                )
                self._hosts = OtherHosts(self._job, self._here, self._is_monitor)
        if self._job is None or self._hosts is None:
            return None
        if self._following.only_rank is None:
            self._hosts.look()
        restarts = self._job.restarts
        new = self._job.poll()
        tails = _of_one_job(self._job.tails)
        if not tails:
            return None
        if self._world is None or self._job.restarts != restarts:
            self._world = self._followed(tails)
        elif self._world.grew(tails):
            before = self._world.summaries
            self._world = self._followed(tails)
            self._world.summaries.update((rank, before[rank]) for rank in before.keys() & tails)
        world = self._world
        for rank in tails.keys() & new.keys():
            world.steps.add(rank, new[rank])
        try:
            world.advance(tails)
        # The new records contradict each other; later records may be consistent.
        except Exception as error:
            self._problems.append(f"some steps are left out: {type(error).__name__}: {error}")
            self._world = world = self._followed(tails)
        self._newest = self._state(world, tails, self._hosts, begin)
        return self._newest

    def publish(self, next_s: float) -> None:
        """Writes the sum of the summaries of this host's ranks, for other hosts to read.

        Writes nothing if a rank of this host has no summary, or if all ranks are on this host.

        Args:
            next_s: the next call follows within this many seconds.

        Raises:
            OSError: the file cannot be written; the old one stays.
        """
        if self._job is None or self._newest is None or self._hosts is None:
            return
        tails = {
            rank: tail
            for rank, tail in _of_one_job(self._job.tails).items()
            if self._here.is_local(metadata_of(tail))
        }
        if not tails or len(tails) == self._newest.world_size:
            return  # no other host takes part
        parts = rank_parts(tails)
        if len(parts) == len(tails):
            self._hosts.write(self._newest, parts, tails, next_s)

    @property
    def caught_up(self) -> bool:
        """True if everything that was written so far has been read."""
        return self._job is not None and self._job.caught_up

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences about traces that cannot be read."""
        return tuple(self._problems_of({}))[:_MOST_PROBLEMS]

    def close(self) -> None:
        """Closes all files."""
        if self._job is not None:
            self._job.close()

    def _job_runs(self) -> bool:
        tails = self._job.tails.values() if self._job is not None else ()
        return any(not tail.ended and _runs(tail, self._here) for tail in tails)

    def _followed(self, tails: dict[int, TraceTail]) -> FollowedTraces:
        return FollowedTraces(tails, self._expected_s, self._patience_s, self._following.settled_ns)

    def _problems_of(self, tails: dict[int, TraceTail]) -> list[str]:
        unread = self._job.unread if self._job is not None else {}
        return with_ranks(
            (rank, problem)
            for rank, tail in (*sorted(tails.items()), *sorted(unread.items()))
            for problem in tail.problems
        )

    def _state(
        self, world: FollowedTraces, tails: dict[int, TraceTail], hosts: OtherHosts, begin: float
    ) -> JobState:
        first = metadata_of(tails[min(tails)])
        if hosts.usable:
            used = hosts.instead_of(tails)
            elsewhere = {rank for host in used for rank in host.part.ranks}
            own = rank_parts({rank: tails[rank] for rank in tails.keys() - elsewhere})
            waited_s = waited_for_s([*own, *(host.part for host in used)], world.world_size)
            current = [*own, *(host.part for host in used if not host.seen.missing)]
            late = late_in(world.world_size, current)
        else:
            waited_s = _waited_for_s(world, tails)
            late = world.late(tails)
        ranks = [
            _rank_state(rank, tails[rank], world, self._here, waited_s.get(rank, math.nan))
            for rank in tails
        ]
        ranks += [
            replace(state, waited_for_s=waited_s.get(state.rank, math.nan))
            for host in hosts.usable
            for state in host.states
            if state.rank not in tails
        ]
        cpu_s, resident = own_process()
        problems = [*self._problems_of(tails), *dict.fromkeys(self._problems)]
        return JobState(
            time_s=time.time(),
            world_size=first["world_size"],
            backend=first["backend"],
            mode=world.mode(tails),
            ranks=tuple(sorted(ranks, key=lambda state: state.rank)),
            late=late,
            bandwidth=world.operations.bandwidth(),
            monitor=MonitorState(
                cpu_s,
                resident,
                time.perf_counter() - begin,
                world.steps.left_out,
                tuple(problems[:_MOST_PROBLEMS]),
            ),
            host=this_host(),
            finished=all(state.status in ("ended", "gone") for state in ranks),
            hosts=hosts.seen,
        )


def _rank_state(
    rank: int, tail: TraceTail, world: FollowedTraces, here: Here, waited_for_s: float
) -> RankState:
    metadata = metadata_of(tail)
    process, lives = rank_process(here, metadata)
    summaries = world.summaries[rank]
    plain, sent = world.compressed.get(rank, (0.0, 0.0))
    status = _status(tail, lives)
    common: dict[str, Any] = {
        "rank": rank,
        "host": str(metadata["machine"]["hostname"]),
        "is_local": here.is_local(metadata),
        "status": status,
        "failed": status == "gone" or (tail.ended and _failed(tail)),
        "since_step_s": _since_step_s(rank, tail, world, here),
        "plain_bytes": plain,
        "sent_bytes": sent,
        "dropped": tail.dropped,
        "trace_bytes": tail.length_bytes,
        "process": process,
        "gradients": newest(tail.path),
    }
    if summaries.newest is not None:
        names = metadata.get("ops", OPS)
        return RankState(
            step=summaries.newest.steps.count or -1,
            total=summaries.total,
            recent=summaries.recent,
            operations=summaries.operations(names),
            waited_for_s=waited_for_s,
            arrivals=ArrivalState(
                known=summaries.newest.arrivals_known - summaries.newest.arrivals_partial,
                partial=summaries.newest.arrivals_partial,
                unknown=summaries.newest.arrivals_unknown,
            ),
            **common,
        )
    return RankState(
        step=world.steps.last_step,
        total=world.recent.total(rank),
        recent=world.recent.recent(rank),
        operations=world.operations.of_rank(rank),
        waited_for_s=world.recent.waited_for_s(rank) if world.recent.ranks else math.nan,
        **common,
    )


def _waited_for_s(world: FollowedTraces, tails: dict[int, TraceTail]) -> dict[int, float]:
    """Returns the time that the other ranks waited for each rank, from the ranks' summaries.

    The time is NaN if the waiting of one of the other ranks is not known.
    """
    summaries = {rank: world.summaries[rank] for rank in tails}
    newest = {rank: found.newest for rank, found in summaries.items()}
    known = {rank for rank, one in newest.items() if one is not None and one.arrivals_known}
    total_ns = dict.fromkeys(newest, 0)
    for waiting, found in summaries.items():
        for rank, waited_ns in found.waited_for_ns().items():
            if rank != waiting and rank in total_ns:
                total_ns[rank] += waited_ns
    return {
        rank: ns_to_s(ns) if len(known - {rank}) == world.world_size - 1 else math.nan
        for rank, ns in total_ns.items()
    }


def _status(tail: TraceTail, lives: bool | None) -> str:
    if tail.ended:
        return "ended"
    return {True: "running", False: "gone", None: ""}[lives]


def _runs(tail: TraceTail, here: Here) -> bool:
    """True if a rank's process runs, or is unknown and its trace was written recently."""
    state, _ = here.find(metadata_of(tail))
    if state is State.UNKNOWN:
        return time.time_ns() - written_ns(tail.path) < _QUIET_NS
    return state is not State.GONE


def _failed(tail: TraceTail) -> bool:
    """True if a rank raised an exception or died. Call this only if the rank's trace has ended."""
    raised = metadata_of(tail).get("ending", {}).get("error")
    return bool(raised) or not tail.closed


def _since_step_s(rank: int, tail: TraceTail, world: FollowedTraces, here: Here) -> float:
    """Returns the seconds since a rank's last step ended; NaN if not known.

    Before the first step, returns the seconds since capture began. If recording was switched on
    later, returns the seconds since that time. Returns NaN in always-on mode, while recording is
    off, after the end of the trace, and for a rank that has another clock.
    """
    metadata = metadata_of(tail)
    counts = tail.summary is None and tail.recording and not tail.ended
    if not here.shares_clock(metadata) or not counts:
        return math.nan
    since = world.last_step_ns.get(rank) or int(metadata["clock"]["monotonic_ns"])
    since = max(since, metadata.get("capture_state", {}).get("monotonic_ns", 0))
    return ns_to_s(max(0, time.monotonic_ns() - since))


def _of_one_job(tails: dict[int, TraceTail]) -> dict[int, TraceTail]:
    """Drops traces of other jobs: their world size differs from the first rank's."""
    if not tails:
        return {}
    world_size = metadata_of(tails[min(tails)])["world_size"]
    return {rank: t for rank, t in tails.items() if metadata_of(t)["world_size"] == world_size}


_LARGEST_BYTES: Final = 4096


def newest(trace: Path) -> GradientState | None:
    """Reads a rank's newest gradient norms from the file next to its trace.

    None if nothing was measured, or the file is being written.
    """
    try:
        with open_regular(trace.with_suffix(".gradients")) as file:
            state: GradientState = checked(json.loads(file.read(_LARGEST_BYTES)), GradientState)
    except (OSError, ValueError, RecursionError):
        return None
    return state


class FollowedTraces:
    """Totals, recent steps and summaries of the ranks of one job."""

    def __init__(
        self,
        tails: dict[int, TraceTail],
        expected_s: ExpectedTime | None,
        patience_s: float,
        settled_ns: int = SETTLED_NS,
    ) -> None:
        self.world_size = int(metadata_of(tails[min(tails)])["world_size"])
        self.steps = StepFollower(self.world_size, settled_ns)
        self.recent = RecentSteps(self.world_size)
        self.operations = RecentOperations(expected_s)
        self.summaries = {rank: Summaries() for rank in tails}
        #: By rank: bytes that an fp32 ring all-reduce would have sent, and bytes that were sent.
        self.compressed: dict[int, tuple[float, float]] = {}
        self._ranks: set[int] = set()
        self._until_s = time.monotonic() + patience_s
        self.last_step_ns: dict[int, int] = {}

    def grew(self, tails: dict[int, TraceTail]) -> bool:
        """True if further ranks appeared after steps had been counted without them."""
        return bool(self._ranks) and set(tails) != self._ranks

    def advance(self, tails: dict[int, TraceTail]) -> None:
        """Adds the steps and summaries that are complete by now."""
        for rank, tail in tails.items():
            self.summaries.setdefault(rank, Summaries())
            if tail.summary is not None:
                self.summaries[rank].add(tail.summary)
        if len(tails) < self.world_size and time.monotonic() < self._until_s:
            return  # ranks do not start at the same time
        if not self._ranks:
            self._ranks = set(tails)
        new = self.steps.advance(tails)
        if new is not None:
            self.recent.add(new)
            self.operations.add(new)
            self._add_compressed(new)
            for rank, trace in zip(new.ranks, new.world.recorded, strict=True):
                marks = trace.records[trace.records["kind"] == Kind.STEP]["timestamp_ns"]
                self.last_step_ns[rank] = int(marks[-1]) if len(marks) else 0

    def mode(self, tails: dict[int, TraceTail]) -> str:
        """Returns the capture mode from the lowest rank's summary; "full" without summaries."""
        for rank in sorted(tails):
            summary = tails[rank].summary
            if summary is not None:
                return summary.mode
        return "full"

    def late(self, tails: dict[int, TraceTail]) -> Late | None:
        """Returns the late rank; None if no rank is late, or if too few ranks wrote summaries."""
        if not any(tail.summary for tail in tails.values()):
            return self.recent.late
        summarised = {rank: tail for rank, tail in tails.items() if tail.summary is not None}
        if list(summarised) != list(range(self.world_size)):
            return None
        return late_in(self.world_size, rank_parts(summarised))

    def _add_compressed(self, new: NewSteps) -> None:
        for rank, trace in zip(new.ranks, new.world.traces, strict=True):
            if not (trace.records["kind"] == Kind.COMPRESSION).any():
                continue
            rows = compression_rows([trace], new.numbers, self.world_size)
            plain, sent = self.compressed.get(rank, (0.0, 0.0))
            for row in rows:
                if not math.isnan(row.sent.ratio):
                    sent += row.sent.wire_bytes * row.calls
                    plain += row.sent.plain_bytes * row.calls
            self.compressed[rank] = plain, sent


def metadata_of(tail: TraceTail) -> dict[str, Any]:
    """Returns a tail's metadata. The tail must be in ``JobTail.tails``."""
    assert tail.metadata is not None
    return tail.metadata


def rank_parts(tails: dict[int, TraceTail]) -> list[SummaryPart]:
    """Returns the newest summary of each rank that has one, by rank."""
    return [
        rank_part(_bare(tail), tail.summary)
        for _, tail in sorted(tails.items())
        if tail.summary is not None
    ]


def _bare(tail: TraceTail) -> Trace:
    return Trace(
        path=tail.path,
        metadata=metadata_of(tail),
        groups=tail.groups,
        records=np.empty(0, dtype=RECORD_DTYPE),
        complete=tail.ended,
        dropped=tail.dropped,
        problems=(),
    )
