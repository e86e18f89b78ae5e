"""Recorder in pure Python: the same trace, without what only native code can see.

It records phases, steps and the buckets of attached DDP models. Collectives that others
issue, and single waits, stay unseen; a process that is killed loses what it recorded since
the last flush, 200 ms at most.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
import zlib
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import torch.distributed as dist

from commprof.trace import schema
from commprof.trace.schema import BlockType, Kind

#: Records kept between two flushes.
_CAPACITY = 1 << 18


@dataclass(frozen=True)
class PythonStats:
    """The counters of ``csrc/core/recorder.h``."""

    records_written: int
    records_dropped: int
    records_unwritten: int
    trace_bytes: int
    rings: int = 1
    rings_in_private_memory: int = 1
    write_errno: int = 0


class PythonRecorder:
    """See ``Recorder`` in ``capture/recorder.py``."""

    def __init__(self) -> None:
        """A recorder that is not started."""
        self._pending: deque[tuple[int, ...]] = deque()
        self._ids = itertools.count(1)
        self._groups: dict[str, tuple[int, str]] = {}
        self._seq: dict[int, int] = {}
        self._file: BinaryIO | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._flusher: threading.Thread | None = None
        self._enabled = False
        self._written = self._dropped = self._bytes = self._errno = 0
        self._open_marker: _PythonMarker | None = None

    @staticmethod
    def now_ns() -> int:
        """CLOCK_MONOTONIC in nanoseconds."""
        return time.monotonic_ns()

    def start(
        self,
        trace_path: str,
        ring_prefix: str,
        metadata_json: str,
        session: int,
        ring_capacity: int = 0,
        flush_interval_ms: int = 200,
    ) -> None:
        """Opens the trace and enables capture; rings do not exist here."""
        if self._file is not None:
            raise RuntimeError("capture is already running in this process")
        self._pending.clear()
        self._written = self._dropped = self._errno = 0
        self._file = Path(trace_path).open("wb")  # noqa: SIM115  (closed by stop)
        header = (schema.TRACE_MAGIC, schema.TRACE_VERSION, schema.FILE_HEADER.size, session, 0)
        self._file.write(schema.FILE_HEADER.pack(*header))
        self._write_block(BlockType.METADATA, metadata_json.encode())
        for _, description in self._groups.values():
            self._write_block(BlockType.GROUP, description.encode())
        self._wake.clear()
        self._flusher = threading.Thread(
            target=self._flush_loop, args=(flush_interval_ms / 1e3,), daemon=True
        )
        self._flusher.start()
        self._enabled = True

    def stop(self) -> None:
        """Closes the trace."""
        self._enabled = False
        if self._file is None:
            return
        self._wake.set()
        if self._flusher is not None:
            self._flusher.join()
        self.flush()
        end = {
            "records": self._written,
            "dropped": self._dropped,
            "end_monotonic_ns": self.now_ns(),
        }
        self._write_block(BlockType.END, json.dumps(end).encode())
        self._file.close()
        self._file = None

    def flush(self) -> None:
        """Writes what is pending."""
        with self._lock:
            rows = [self._pending.popleft() for _ in range(len(self._pending))]
            if rows:
                payload = np.array(rows, dtype=schema.RECORD_DTYPE).tobytes()
                if self._write_block(BlockType.RECORDS, payload):
                    self._written += len(rows)
                else:
                    self._pending.extendleft(reversed(rows))

    def record(self, kind: Kind, timestamp_ns: int, **fields: int) -> None:
        """Appends one record; fields are those of ``schema.RECORD_DTYPE``."""
        if len(self._pending) >= _CAPACITY:
            self._dropped += 1
            return
        fields.update(timestamp_ns=timestamp_ns, kind=kind, thread=threading.get_native_id())
        self._pending.append(tuple(fields.get(name, 0) for name in _FIELDS))

    def record_finalize(self, kind: Kind, graph_task: int) -> None:
        """One edge of the finalisation window; run delay is not read here."""
        if self._enabled:
            cpu_ns = time.thread_time_ns()
            self.record(kind, self.now_ns(), op_id=graph_task, value=cpu_ns)

    def next_op_id(self) -> int:
        """A number unique in this process."""
        return next(self._ids)

    def next_seq(self, group_id: int) -> int:
        """This group's next collective number."""
        seq = self._seq.get(group_id, 0)
        self._seq[group_id] = seq + 1
        return seq

    def group_id(self, group: dist.ProcessGroup) -> int:
        """Small number of a process group; its description goes to the trace."""
        name = group.group_name
        if name not in self._groups:
            number = len(self._groups) + 1
            description = json.dumps(
                {
                    "id": number,
                    "name": name,
                    "description": group.group_desc,
                    "backend": dist.get_backend(group),
                    "rank": group.rank(),
                    "size": group.size(),
                }
            )
            self._groups[name] = (number, description)
            self._write_block(BlockType.GROUP, description.encode())
        return self._groups[name][0]

    def stats(self) -> PythonStats:
        """Counters."""
        return PythonStats(
            self._written,
            self._dropped,
            len(self._pending),
            self._bytes,
            write_errno=self._errno,
        )

    def started(self) -> bool:
        """Whether a trace is open."""
        return self._file is not None

    def set_enabled(self, on: bool) -> None:
        """Switches recording on or off."""
        self._enabled = on and self._file is not None

    def enabled(self) -> bool:
        """Whether records are being taken."""
        return self._enabled

    def install_observer(self) -> list[str]:
        """Python sees no operators but those of attached models."""
        return []

    def mark_step(self, step: int, ended: bool) -> None:
        """A step boundary; forgets a marker that was left open."""
        self._open_marker = None
        if self._enabled:
            self.record(Kind.STEP, self.now_ns(), op_id=step, aux=int(ended))

    def PhaseMarker(self, phase: int) -> _PythonMarker:
        """A marker for one phase."""
        return _PythonMarker(self, phase)

    def record_cost_ns(self, count: int) -> float:
        """Mean cost of one record."""
        scratch = PythonRecorder()
        begin_ns = self.now_ns()
        for _ in range(count):
            scratch.record(Kind.END, self.now_ns())
            scratch._pending.clear()
        return (self.now_ns() - begin_ns) / max(count, 1)

    def _flush_loop(self, interval_s: float) -> None:
        while not self._wake.wait(interval_s):
            self.flush()

    def _write_block(self, block_type: BlockType, payload: bytes) -> bool:
        """Appends one block; on failure cuts the file back and says so in ``stats``."""
        if self._file is None:
            return False
        header = schema.BLOCK_HEADER.pack(
            schema.BLOCK_MAGIC, block_type, len(payload), zlib.crc32(payload), 0
        )
        begin = self._file.tell()
        try:
            self._file.write(header + payload)
            self._file.flush()
        except OSError as error:
            self._errno = error.errno or 0
            self._file.seek(begin)
            self._file.truncate()
            return False
        self._bytes = begin + len(header) + len(payload)
        return True


class _PythonMarker:
    """The rules of ``csrc/core/phase_marker.h``, for the thread that trains."""

    def __init__(self, owner: PythonRecorder, phase: int) -> None:
        self._owner = owner
        self._phase = phase
        self._depth = 0
        self._begin_ns = 0

    def begin(self) -> None:
        owner = self._owner
        if owner._open_marker is None:
            owner._open_marker = self
            self._depth = 0
            self._begin_ns = owner.now_ns()
        if owner._open_marker is self:
            self._depth += 1

    def end(self) -> None:
        owner = self._owner
        if owner._open_marker is not self:
            return
        self._depth -= 1
        if self._depth == 0:
            owner._open_marker = None
            if owner.enabled():
                owner.record(Kind.PHASE, self._begin_ns, aux=self._phase, value=owner.now_ns())

    def __enter__(self) -> _PythonMarker:
        self.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()


_FIELDS: tuple[str, ...] = tuple(schema.RECORD_DTYPE.names or ())
