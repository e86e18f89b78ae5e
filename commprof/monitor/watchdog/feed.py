"""One rank as seen from another process: its trace, its ring buffers and its process state."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from commprof.files import descriptor_of_regular
from commprof.monitor.follow import TraceTail
from commprof.monitor.rank_state import FollowedRank, common_names
from commprof.monitor.watchdog.hang import DEAD, HungProcess
from commprof.trace import schema
from commprof.trace.ring import RingTail
from commprof.trace.run.processes import PROC, Here, State, stat_of, text_of
from commprof.trace.schema import Records

#: Number of looks in a row that must find a process in state D before this state is reported: page
#: faults cause it briefly.
_LOOKS = 4
_SENTENCES = {
    "stopped": "is stopped (SIGSTOP or a job control signal); kill -CONT {pid} resumes it",
    "traced": "is held by a debugger, process {tracer}",
    "uninterruptible": "sleeps in the kernel (state D{where}): a disk, network file system or "
    "driver does not answer",
    DEAD: "is dead: process {pid} is gone",
}
_OF_SEVERAL = {
    "stopped": "are stopped (SIGSTOP or a job control signal); kill -CONT resumes each",
    "traced": "are held by a debugger",
    "uninterruptible": "sleep in the kernel (state D): a disk, network file system or driver does "
    "not answer",
    DEAD: "are dead: their processes are gone",
}
_CODES = {"T": "stopped", "t": "traced", "D": "uninterruptible", "Z": DEAD, "X": DEAD}


class ProcessWatch:
    """State of one process; a later process with the same id is not mistaken for it."""

    def __init__(self, pid: int, *, gone: bool = False) -> None:
        """Begins to watch; ``gone``: the process has ended, and another may have its id."""
        self.pid = pid
        #: Start time of the process; None if it had ended before the watch began.
        self._started = None if gone else _stat(pid)[1]
        self._asleep = 0

    def poll(self) -> HungProcess:
        """Returns the process's state now."""
        code, started = _stat(self.pid)
        if not code or started != self._started:
            code = "X"
        state = _CODES.get(code, "running")
        self._asleep = self._asleep + 1 if state == "uninterruptible" else 0
        if state == "uninterruptible" and self._asleep < _LOOKS:
            state = "running"
        sentence = _SENTENCES.get(state, "")
        return HungProcess(
            self.pid,
            state,
            sentence.format(pid=self.pid, tracer=_tracer(self.pid), where=_kernel_place(self.pid)),
            _OF_SEVERAL.get(state, ""),
        )


def _stat(pid: int) -> tuple[str, int]:
    """Returns a process's state code and start time; ("", 0) if it is gone."""
    try:
        status = stat_of(pid)
    except OSError:
        return "", 0
    return ("", 0) if status is None else (status.code, status.start_ticks)


def _tracer(pid: int) -> str:
    lines = text_of(PROC / str(pid) / "status").splitlines()
    return next((line.split()[1] for line in lines if line.startswith("TracerPid:")), "unknown")


def _kernel_place(pid: int) -> str:
    place = text_of(PROC / str(pid) / "wchan").split("\n", 1)[0]
    return f" in {place}" if place not in ("", "0") else ""


#: If a trace is older than the watchdog, only this many bytes at the trace's end are read.
_RECENT_BYTES = 4 << 20
#: The trace names the files of the rank's ring buffers. If the trace has records, but these files
#: are still missing after this many looks, they are no longer awaited.
_RING_LOOKS = 6
_NONE: Records = np.empty(0, schema.RECORD_DTYPE)


class RankFeed:
    """Follows one rank: its new records, its state and its process. Close it after use."""

    def __init__(self, path: Path) -> None:
        """Follows the trace at ``path``, which may still be empty."""
        self.path = path
        #: State of the rank; None until the trace has its first block.
        self.state: FollowedRank | None = None
        #: Records that the last look found, ordered by time.
        self.records: Records = _NONE
        #: State of the process; None if it runs on another host or in another container.
        self.process: HungProcess | None = None
        #: Reader of the trace.
        self.tail = TraceTail(path, _RECENT_BYTES)
        self._rings: RingTail | None = None
        self._watch: ProcessWatch | None = None
        #: Records of the trace, kept until it is clear whether there are rings.
        self._early: list[Records] = []
        #: Threads whose records were in the ring files.
        self._in_rings: set[int] = set()

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the trace; empty until it has its first block."""
        return self.tail.metadata or {}

    @property
    def attempt(self) -> int:
        """Number of elastic restarts before this process."""
        return int(self.metadata.get("restart_count", 0))

    @property
    def group_sizes(self) -> dict[int, tuple[str, int]]:
        """Unique name and size of each process group, by this rank's id of the group."""
        named = common_names(self.tail.groups.values())
        return {number: (group.name, group.size) for number, group in named.items()}

    @property
    def stacks(self) -> dict[int, tuple[str, ...]]:
        """The stacks that the trace describes so far, by id, as in ``Trace``."""
        return self.tail.stacks

    @property
    def over(self) -> bool:
        """True if no further records can come."""
        return self.tail.ended or (self.process is not None and self.process.state == "dead")

    @property
    def is_seen(self) -> bool:
        """True if all of the rank's new records can be read: in its trace, or in its ring files.

        False while the rank records nothing. Also False if some or all ring files are missing and
        the mode is not "full": the trace then has no records.
        """
        if not self.tail.recording:
            return False
        rings = self._rings is not None and self._rings.rings > 0 and not self._rings_lack_records
        summary = self.tail.summary
        return rings or summary is None or summary.mode == "full"

    @property
    def _rings_lack_records(self) -> bool:
        """True if some threads have rings without files."""
        return bool(self.metadata.get("private_rings"))

    def poll(self) -> None:
        """Reads all new records and updates the state."""
        # Rings first: a group is described in the trace before a ring has the group's first record,
        # so the trace, if it is read afterwards, describes the groups of all records of the rings.
        from_rings = _NONE if self._rings is None else self._rings.poll()
        from_trace = self.tail.poll()
        if self.state is None and self.metadata:
            self._begin()
        if self.state is None:
            return
        self.records = self._chosen(from_rings, from_trace)
        self.state.take(self.records, self.tail.groups.values())
        self.state.closed = self.tail.ended
        self._forget_unrecorded(self.state)
        if self._watch is not None:
            self.process = self._watch.poll()

    def _forget_unrecorded(self, state: FollowedRank) -> None:
        """Forgets operations and phases that were open when recording was switched off.

        Later operations are kept: after recording has resumed, records may be in the ring files
        before the trace states that it resumed.
        """
        capture_state = self.metadata.get("capture_state")
        if capture_state is not None and not capture_state["recording"]:
            state.forget_open(capture_state["monotonic_ns"])
        elif capture_state is None and not self.tail.recording:
            # Only the summary shows that recording is off. The summary does not show since when.
            state.forget_open(state.last_ns + 1)

    def _chosen(self, from_rings: Records, from_trace: Records) -> Records:
        """Returns the records of the rings if there are rings, else those of the trace.

        If some rings have no files, the records of their threads come from the trace.
        """
        if self._rings is None:
            return from_trace
        if self._rings.rings:
            self._in_rings.update(np.unique(from_rings["thread"]).tolist())
            early, self._early = self._early, []
            if not self._rings_lack_records:
                return from_rings
            rest = np.concatenate([*early, from_trace])
            rest = rest[~np.isin(rest["thread"], list(self._in_rings))]
            chosen = np.concatenate([from_rings, rest])
            return chosen[np.argsort(chosen["timestamp_ns"], kind="stable")]
        self._early.append(from_trace)
        if len(self._early) <= _RING_LOOKS or not any(map(len, self._early)):
            del self._early[: -2 * _RING_LOOKS]
            return _NONE
        # The rank has no ring files: there was no room for them.
        self._rings.close()
        self._rings = None
        return np.concatenate(self._early)

    def close(self) -> None:
        """Closes the files."""
        self.tail.close()
        if self._rings is not None:
            self._rings.close()

    def _begin(self) -> None:
        metadata = self.metadata
        self.state = FollowedRank(metadata["rank"], metadata["world_size"])
        here = Here()
        if not (here.shares_pids(metadata) and here.shares_clock(metadata)):
            return
        gone = here.find(metadata)[0] is State.GONE
        self._watch = ProcessWatch(metadata["pid"], gone=gone)
        if metadata["ring_prefix"]:
            self._rings = RingTail(metadata["ring_prefix"], _session(self.path))


def _session(path: Path) -> int:
    """Returns the session id that links a trace to its ring buffers; 0 if the trace is gone."""
    try:
        fd = descriptor_of_regular(path)
    except OSError:
        return 0
    try:
        header = os.pread(fd, schema.FILE_HEADER.size, 0)
        return int(schema.FILE_HEADER.unpack(header)[3]) if len(header) == 32 else 0
    except OSError:
        return 0
    finally:
        os.close(fd)
