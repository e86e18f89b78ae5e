"""Reads one rank's records and process state from outside the rank."""

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

#: State D is reported once this many consecutive looks have found it, because page faults cause
#: state D for a short time.
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
    """Watches one process, which counts as dead once another process has its id."""

    def __init__(self, pid: int, *, gone: bool = False) -> None:
        """Begins to watch. ``gone`` is True if the process has already ended."""
        self.pid = pid
        #: Start time of the process; None if the process had already ended.
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
    """Returns a process's state code and start time; ("", 0) if the process is gone."""
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


#: Number of bytes that are read from the end of a trace that is older than the watchdog.
_RECENT_BYTES = 4 << 20
#: Number of looks after which missing files of ring buffers are no longer awaited.
_RING_LOOKS = 6
_NONE: Records = np.empty(0, schema.RECORD_DTYPE)


class RankFeed:
    """Follows one rank's records, state and process. A feed must be closed after use."""

    def __init__(self, path: Path) -> None:
        """Follows the trace at ``path``, which may still be empty."""
        self.path = path
        #: State of the rank; None until the trace has its first block.
        self.state: FollowedRank | None = None
        #: Records from the last :meth:`poll`, ordered by time.
        self.records: Records = _NONE
        #: None if the process runs on another host or in another container.
        self.process: HungProcess | None = None
        self.tail = TraceTail(path, _RECENT_BYTES)
        self._rings: RingTail | None = None
        self._watch: ProcessWatch | None = None
        #: Records of the trace, kept until it is known whether ring files exist.
        self._early: list[Records] = []
        self._in_rings: set[int] = set()

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the trace; empty until the trace has its first block."""
        return self.tail.metadata or {}

    @property
    def attempt(self) -> int:
        """Number of elastic restarts before this process."""
        return int(self.metadata.get("restart_count", 0))

    @property
    def group_sizes(self) -> dict[int, tuple[str, int]]:
        """Unique name and size of each process group, by group id."""
        named = common_names(self.tail.groups.values())
        return {number: (group.name, group.size) for number, group in named.items()}

    @property
    def stacks(self) -> dict[int, tuple[str, ...]]:
        """Stacks that the trace describes, by stack id."""
        return self.tail.stacks

    @property
    def over(self) -> bool:
        """True if no further records can come."""
        return self.tail.ended or (self.process is not None and self.process.state == "dead")

    @property
    def is_seen(self) -> bool:
        """True if all of the rank's new records can be read, from its trace or its ring files.

        False while recording is switched off. Also False if ring files are missing and the mode is
        not "full".
        """
        if not self.tail.recording:
            return False
        rings = self._rings is not None and self._rings.rings > 0 and not self._rings_lack_records
        summary = self.tail.summary
        return rings or summary is None or summary.mode == "full"

    @property
    def _rings_lack_records(self) -> bool:
        return bool(self.metadata.get("private_rings"))

    def poll(self) -> None:
        """Reads all new records and updates the state."""
        # Rings are read before the trace. A rank describes a group in its trace before it uses the
        # group, so the trace then describes the groups of all ring records.
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
        """Forgets operations that were pending when recording was switched off.

        Newer operations are kept: when recording resumes, the ring files may have new records
        before the trace states the change.
        """
        capture_state = self.metadata.get("capture_state")
        if capture_state is not None and not capture_state["recording"]:
            state.forget_open(capture_state["monotonic_ns"])
        elif capture_state is None and not self.tail.recording:
            # The summary shows that recording is off, but not since when.
            state.forget_open(state.last_ns + 1)

    def _chosen(self, from_rings: Records, from_trace: Records) -> Records:
        """Returns the records of the rings if there are rings, else the trace's records.

        If a thread's ring has no file, the thread's records come from the trace.
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
    """Returns the session id that links a trace to its ring buffers; 0 if the id is not known."""
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
