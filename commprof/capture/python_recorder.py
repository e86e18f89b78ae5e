"""Recorder in pure Python, with the same trace format as the native recorder.

It records phases, steps and the buckets of attached DDP models, but no other collectives and no
waits. A process that is killed loses the records of the last 200 ms at most.

Its phase markers follow the rules of ``csrc/core/phase_marker.h``.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch.distributed as dist

from commprof.text import printable
from commprof.trace import schema
from commprof.trace.blocks import pack_block
from commprof.trace.schema import SAMPLES_UNKNOWN, BlockType, Kind


class OpenMarker(threading.local):
    """The outermost open marker of each thread."""

    marker: PythonMarker | None = None
    #: Number of times that ``marker`` is open: it may be nested in itself.
    depth = 0
    begin_ns = 0
    samples = 0


class PythonMarker:
    """Marks one phase; calls ``done`` at the end of an outermost phase."""

    def __init__(
        self, phase: int, open_marker: OpenMarker, done: Callable[[int, int, int, int], None]
    ) -> None:
        """Makes a marker of one phase.

        Args:
            phase: code of the phase.
            open_marker: phases count as nested if their markers share this object.
            done: called with phase, begin in ns, end in ns and number of samples.
        """
        self._phase = phase
        self._open = open_marker
        self._done = done

    def begin(self) -> None:
        """Begins the phase on the calling thread."""
        if self._open.marker is None:
            self._open.marker = self
            self._open.depth = 0
            self._open.begin_ns = time.monotonic_ns()
            self._open.samples = 0
        if self._open.marker is self:
            self._open.depth += 1

    def end(self, samples: int = 0) -> None:
        """Ends the phase; only the outermost phase is recorded.

        ``samples``: number of samples read in the phase. The samples of inner phases are added to
        the outermost phase.
        """
        self._open.samples = min(self._open.samples + samples, SAMPLES_UNKNOWN)
        if self._open.marker is not self:
            return
        self._open.depth -= 1
        if self._open.depth == 0:
            self._open.marker = None
            self._done(self._phase, self._open.begin_ns, time.monotonic_ns(), self._open.samples)

    def __enter__(self) -> PythonMarker:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


#: Maximum number of records kept between two flushes.
_CAPACITY = 1 << 18
#: Minimum length of a pause that is written to the trace; equal to the value in
#: csrc/core/modes/recorder_mode.cpp.
_REPORT_OFF_AFTER_NS = 500_000_000


@dataclass(frozen=True)
class PythonStats:
    """Counters of the Python recorder, named as in ``csrc/core/recorder.h``."""

    records_written: int = 0
    records_dropped: int = 0
    records_unwritten: int = 0
    trace_bytes: int = 0
    rings: int = 1
    rings_in_private_memory: int = 1
    write_errno: int = 0


def _backend_of(group: dist.ProcessGroup) -> str:
    """Returns the backend's name, also if torch gives "undefined" because none was chosen."""
    name = str(dist.get_backend(group))
    return str(group.name()) if name == "undefined" else name


class PythonRecorder:
    """Implementation of ``Recorder`` in Python, used if there is no native module."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._groups: dict[str, int] = {}
        self._documents: list[tuple[BlockType, str]] = []
        self._seq: dict[int, int] = {}
        self._open = OpenMarker()
        self._file: PythonTraceFile | None = None
        self._reset()

    def _reset(self) -> None:
        self._pending: deque[tuple[int, ...]] = deque()
        self._path = ""
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._flusher: threading.Thread | None = None
        self._enabled = False
        self._complained = False
        self._documents_written = self._written = self._dropped = 0
        #: Time at which recording was turned off; 0 while it is on. ``_off_written`` is True if the
        #: trace says that recording is off.
        self._off_since_ns, self._off_written = 0, False
        self._last = PythonStats()

    def forget_after_fork(self) -> None:
        """Registers a fork handler that closes the trace in child processes."""

        def forget() -> None:
            if self._file is not None:
                self._file.close()
                self._file = None
            self._reset()

        os.register_at_fork(after_in_child=forget)

    @staticmethod
    def now_ns() -> int:
        """Returns CLOCK_MONOTONIC in nanoseconds."""
        return time.monotonic_ns()

    def start(
        self,
        trace_path: str,
        ring_prefix: str,
        metadata_json: str,
        session: int,
        flush_interval_ms: int = 200,
        mode: int = schema.MODES.index("full"),
        control_path: str = "",
        switch_signal: int = 0,
    ) -> None:
        """Opens the trace and starts recording.

        The parameters ``ring_prefix``, ``control_path`` and ``switch_signal`` are ignored.

        Raises:
            RuntimeError: ``mode`` is not the index of "full" in ``schema.MODES``, or a trace is
                already open.
            OSError: the trace cannot be written.
        """
        if schema.MODES[mode] != "full":
            raise RuntimeError(
                f"{schema.MODES[mode]} mode needs the native module; choose full mode, or install "
                "commprof with that module"
            )
        if self._file is not None:
            raise RuntimeError("capture is already running in this process")
        file = PythonTraceFile(trace_path, session)
        if not file.write_block(BlockType.METADATA, metadata_json.encode()):
            file.close()
            raise OSError(file.write_errno, os.strerror(file.write_errno), trace_path)
        self._pending.clear()
        self._documents_written = self._written = self._dropped = 0
        self._off_since_ns, self._off_written = 0, False
        self._complained = False
        self._path = printable(trace_path)
        self._file = file
        self.flush()
        self._wake.clear()
        self._flusher = threading.Thread(
            target=self._flush_loop,
            args=(flush_interval_ms / 1e3,),
            name="commprof-flush",
            daemon=True,
        )
        self._flusher.start()
        self._enabled = True

    def stop(self) -> None:
        """Closes the trace; records that cannot be written count as dropped."""
        self._enabled = False
        if self._file is None or self._flusher is None:
            return
        self._wake.set()
        self._flusher.join()
        self.flush()
        self._dropped += len(self._pending)
        self._pending.clear()
        end = {
            "records": self._written,
            "dropped": self._dropped,
            "end_monotonic_ns": self.now_ns(),
        }
        if not self._file.write_block(BlockType.END, json.dumps(end).encode()):
            self._complain(self._file)
        self._last = self.stats()
        self._file.close()
        self._file = None

    def flush(self) -> None:
        """Writes the pending records; after a failed write, they wait for the next flush."""
        file = self._file
        if file is None:
            return
        with self._lock:
            if not (
                self._write_documents(file)
                and self._write_recording(file)
                and self._write_records(file)
            ):
                self._complain(file)

    def _write_documents(self, file: PythonTraceFile) -> bool:
        for block_type, text in self._documents[self._documents_written :]:
            if not file.write_block(block_type, text.encode()):
                return False
            self._documents_written += 1
        return True

    def _write_recording(self, file: PythonTraceFile) -> bool:
        """Writes whether recording is on, so that a monitor does not mistake a pause for a hang."""
        now_ns = self.now_ns()
        if self._enabled:
            self._off_since_ns = 0
        elif self._off_since_ns == 0:
            self._off_since_ns = now_ns
        off = self._off_since_ns != 0 and now_ns - self._off_since_ns >= _REPORT_OFF_AFTER_NS
        if off == self._off_written:
            return True
        state = {"recording": not off, "monotonic_ns": self._off_since_ns if off else now_ns}
        if not file.write_block(BlockType.METADATA, json.dumps({"capture_state": state}).encode()):
            return False
        self._off_written = off
        return True

    def _write_records(self, file: PythonTraceFile) -> bool:
        rows = [self._pending.popleft() for _ in range(len(self._pending))]
        if not rows:
            return True
        payload = np.array(rows, dtype=schema.RECORD_DTYPE).tobytes()
        if not file.write_block(BlockType.RECORDS, payload):
            self._pending.extendleft(reversed(rows))
            return False
        self._written += len(rows)
        return True

    def _complain(self, file: PythonTraceFile) -> None:
        if not self._complained:
            self._complained = True
            print(
                f"commprof: cannot write {self._path}: {os.strerror(file.write_errno)}. Training "
                "goes on; the newest records wait in memory, and those that do not fit count as "
                "dropped.",
                file=sys.stderr,
            )

    def record(self, kind: Kind, timestamp_ns: int, **fields: int) -> None:
        """Appends one record; ``fields`` are named as in ``schema.RECORD_DTYPE``."""
        if len(self._pending) >= _CAPACITY:
            with self._lock:
                self._dropped += 1
            return
        fields.update(timestamp_ns=timestamp_ns, kind=kind, thread=threading.get_native_id())
        self._pending.append(tuple(fields.get(name, 0) for name in _FIELDS))

    def record_finalize(self, kind: Kind, graph_task: int, flags: int = 0) -> None:
        """Records the begin or the end of DDP's finalisation, with the thread's CPU time.

        ``graph_task`` is the id that autograd gives the backward pass.
        """
        if self._enabled:
            cpu_ns = time.thread_time_ns()
            self.record(kind, self.now_ns(), op_id=graph_task, value=cpu_ns, flags=flags)

    def next_op_id(self) -> int:
        """Returns a number that is unique in this process."""
        return next(self._ids)

    def next_seq(self, group_id: int) -> int:
        """Counts a collective of the group, and returns the collective's sequence number."""
        seq = self._seq.get(group_id, 0)
        self._seq[group_id] = seq + 1
        return seq

    def group_id(self, group: dist.ProcessGroup) -> int:
        """Returns the id of a process group; writes a new group's description to the trace."""
        name = group.group_name
        if name not in self._groups:
            number = len(self._groups) + 1
            description = {
                "id": number,
                "name": name,
                "description": group.group_desc,
                "backend": _backend_of(group),
                "rank": group.rank(),
                "size": group.size(),
            }
            self._groups[name] = number
            self._add_document(BlockType.GROUP, json.dumps(description))
        return self._groups[name]

    def add_metadata(self, json: str) -> None:
        """Adds keys to the metadata of this trace and of every later one."""
        self._add_document(BlockType.METADATA, json)

    def _add_document(self, block_type: BlockType, text: str) -> None:
        self._documents.append((block_type, text))
        self.flush()

    def stats(self) -> PythonStats:
        """Returns the counters of the open trace, or of the last one if no trace is open."""
        if self._file is None:
            return self._last
        return PythonStats(
            records_written=self._written,
            records_dropped=self._dropped,
            records_unwritten=len(self._pending),
            trace_bytes=self._file.size_bytes,
            write_errno=self._file.write_errno,
        )

    def started(self) -> bool:
        """True if a trace is open."""
        return self._file is not None

    def set_enabled(self, on: bool) -> None:
        """Switches recording on or off."""
        self._enabled = on and self._file is not None

    def enabled(self) -> bool:
        """True if records are being taken."""
        return self._enabled

    def install_observer(self) -> list[str]:
        """Returns an empty list, because this recorder observes no operators of torch."""
        return []

    def set_stacks(self, on: bool, most: int = 0) -> None:
        """Prints that this recorder records no stacks, if all stacks are to be recorded."""
        if on and not most:
            print(
                "commprof: no stacks are recorded, because they need the native module; install "
                "commprof with that module",
                file=sys.stderr,
            )

    def mark_step(self, step: int, ended: bool, found: int = schema.STEP_DECLARED, /) -> None:
        """Records a step boundary, and drops a phase that this thread left open.

        The parameters are those of ``Recorder.mark_step``.
        """
        self._open.marker = None
        if self._enabled:
            self.record(Kind.STEP, self.now_ns(), op_id=step, aux=int(ended), seq=found)

    def PhaseMarker(self, phase: int) -> PythonMarker:
        """Makes a marker for one phase."""
        return PythonMarker(phase, self._open, self._record_phase)

    def _record_phase(self, phase: int, begin_ns: int, end_ns: int, samples: int) -> None:
        if self._enabled:
            self.record(Kind.PHASE, begin_ns, aux=phase, value=end_ns, seq=samples)

    def record_cost_ns(self, count: int) -> float:
        """Measures the mean cost of one record over ``count`` records, in nanoseconds."""
        scratch = PythonRecorder()
        begin_ns = self.now_ns()
        for _ in range(count):
            scratch.record(Kind.END, self.now_ns())
            scratch._pending.clear()
        return (self.now_ns() - begin_ns) / max(count, 1)

    def _flush_loop(self, interval_s: float) -> None:
        while not self._wake.wait(interval_s):
            self.flush()


_FIELDS: tuple[str, ...] = tuple(schema.RECORD_DTYPE.names or ())


class PythonTraceFile:
    """A trace file open for writing; its methods may be called from any thread."""

    def __init__(self, path: str, session: int) -> None:
        """Creates or truncates ``path`` and writes the file header; raises OSError."""
        self._lock = threading.Lock()
        #: errno of the last failed write; 0 if none failed yet.
        self.write_errno = 0
        self.size_bytes = 0
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        header = (schema.TRACE_MAGIC, schema.TRACE_VERSION, schema.FILE_HEADER.size, session, 0)
        if not self._append(schema.FILE_HEADER.pack(*header)):
            self.close()
            raise OSError(self.write_errno, os.strerror(self.write_errno), path)

    def write_block(self, block_type: BlockType, payload: bytes) -> bool:
        """Appends one block; on failure restores the file's size and returns False."""
        with self._lock:
            return self._append(pack_block(block_type, payload))

    def close(self) -> None:
        """Closes the file without writing, because forked children call this, too."""
        os.close(self._fd)

    def _append(self, data: bytes) -> bool:
        left = memoryview(data)
        try:
            while left:
                written = os.pwrite(self._fd, left, self.size_bytes + len(data) - len(left))
                if written == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                left = left[written:]
        except OSError as error:
            self.write_errno = error.errno or errno.EIO
            os.ftruncate(self._fd, self.size_bytes)
            return False
        self.size_bytes += len(data)
        return True
