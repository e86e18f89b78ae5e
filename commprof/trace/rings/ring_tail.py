"""Follows the rings of a live process: all that it records, in every mode, as soon as it does.

A slot of a ring keeps its record until the thread has pushed ``capacity`` more, whoever drained it
in the meantime. So a reader beside the process sees what it has not flushed yet, and what always-on
mode folds into its summary and keeps nowhere; and the process does nothing for it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from commprof.files import descriptor_of_regular
from commprof.trace import schema
from commprof.trace.rings.ring import ring_capacity, ring_files
from commprof.trace.schema import Kind, Records

_RECORD_BYTES = schema.RECORD_DTYPE.itemsize
#: A file that claims more is none of ours: the recorder takes 16384.
_LARGEST_CAPACITY = 1 << 20


@dataclass
class _Open:
    """One ring file."""

    fd: int
    capacity: int
    #: Number of the next record to read, counted as the ring's head counts.
    next: int


class RingTail:
    """The newest records of one process. Not thread-safe; close it after use.

    Files stay open, so what a process pushed before it removed its rings is still read.
    """

    def __init__(self, ring_prefix: str, session: int) -> None:
        """ring_prefix: from the trace's metadata. session: from its header."""
        self._prefix = ring_prefix
        self._session = session
        self._rings: dict[Path, _Open] = {}
        #: Records that were overwritten before they were read.
        self.missed = 0

    @property
    def rings(self) -> int:
        """How many were found; without any, only the trace tells what the process does."""
        return len(self._rings)

    def poll(self) -> Records:
        """The records pushed since the last look, ordered by time.

        The first look takes all that the rings still hold.
        """
        for path in ring_files(self._prefix):
            if path not in self._rings:
                self._open(path)
        batches = [self._read(ring) for ring in self._rings.values()]
        records = np.concatenate([np.empty(0, schema.RECORD_DTYPE), *batches])
        records = records[records["kind"] != Kind.NONE]
        return records[np.argsort(records["timestamp_ns"], kind="stable")]

    def close(self) -> None:
        """Closes the files."""
        for ring in self._rings.values():
            os.close(ring.fd)
        self._rings.clear()

    def _open(self, path: Path) -> None:
        try:
            fd = descriptor_of_regular(path)
        except OSError:
            return
        header = os.pread(fd, schema.RING_HEADER_BYTES, 0)
        capacity = ring_capacity(header, self._session, os.fstat(fd).st_size)
        if not 0 < capacity <= _LARGEST_CAPACITY:  # foreign, or just being made
            os.close(fd)
            return
        self._rings[path] = _Open(fd, capacity, 0)

    def _read(self, ring: _Open) -> Records:
        head = _head(ring)
        begin = max(ring.next, head - ring.capacity)
        count = max(head - begin, 0)
        data = bytearray()
        while len(data) < count * _RECORD_BYTES:
            at = begin + len(data) // _RECORD_BYTES
            run = min(head - at, ring.capacity - at % ring.capacity)
            offset = schema.RING_HEADER_BYTES + at % ring.capacity * _RECORD_BYTES
            piece = os.pread(ring.fd, run * _RECORD_BYTES, offset)
            if len(piece) < run * _RECORD_BYTES:
                return np.empty(0, schema.RECORD_DTYPE)
            data += piece
        # The thread went on meanwhile: what it wrote over, or may just be writing, does not count.
        valid = max(begin, _head(ring) - ring.capacity + 1)
        if ring.next:
            self.missed += max(min(valid, head) - ring.next, 0)
        ring.next = max(ring.next, head)
        records = np.frombuffer(bytes(data), schema.RECORD_DTYPE)
        return records[valid - begin :]


def _head(ring: _Open) -> int:
    return int.from_bytes(os.pread(ring.fd, 8, schema.RING_HEAD_OFFSET), "little")
