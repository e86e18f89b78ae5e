"""Reads ring files, which hold the newest records of a process, dead or alive.

A slot of a ring keeps its record until ``capacity`` further records were pushed, even after the
process has taken the record out. So other processes can read records that are not in the trace, at
no cost for the recorded process.
"""

from __future__ import annotations

import functools
import json
import os
import re
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Final

import numpy as np

from commprof.files import descriptor_of_regular, open_regular, read_json
from commprof.trace import schema
from commprof.trace.run.processes import State, state_of
from commprof.trace.schema import Kind, Records

_MEMORY = Path("/dev/shm")


@dataclass
class RingContent:
    """Records that the rings of one process hold."""

    batches: list[Records] = field(default_factory=list)
    dropped: int = 0


def read_rings(ring_prefix: str, session: int) -> RingContent:
    """Reads the ring files ``<ring_prefix><n>.ring`` that belong to ``session``.

    Skips files that are missing, foreign or damaged. An empty ``ring_prefix`` means that the
    process had no ring files.
    """
    content = RingContent()
    for path in ring_files(ring_prefix):
        try:
            with open_regular(path) as file:
                header = file.read(schema.RING_HEADER_BYTES)
                capacity = ring_capacity(header, session, os.fstat(file.fileno()).st_size)
                data = file.read(capacity * schema.RECORD_DTYPE.itemsize)
        except OSError:
            continue
        if capacity:
            _take_ring(header, data, content)
    return content


def dropped_so_far(ring_prefix: str, session: int) -> int:
    """Returns how many records a running process has lost because its rings were full."""
    dropped = 0
    for path in ring_files(ring_prefix):
        try:
            fd = descriptor_of_regular(path)
        except OSError:
            continue
        try:
            header = os.pread(fd, schema.RING_HEADER_BYTES, 0)
        except OSError:
            continue
        finally:
            os.close(fd)
        if _session(header) == session:
            at = schema.RING_DROPPED_OFFSET
            dropped += int.from_bytes(header[at : at + 8], "little")
    return dropped


def has_rings(ring_prefix: str) -> bool:
    """True if there are ring files with this prefix."""
    return any(True for _ in ring_files(ring_prefix))


def remove_rings(ring_prefix: str, session: int) -> None:
    """Removes the ring files of a session; the session's process must be gone."""
    if not ring_prefix:
        return
    for path in ring_files(ring_prefix):
        try:
            with open_regular(path) as file:
                header = file.read(schema.RING_HEADER_BYTES)
            # A file without a header: the process died while making the file.
            if not any(header) or _session(header) == session:
                path.unlink()
        except OSError:
            continue
    if _owner_session(owner_path(ring_prefix)) == session:
        owner_path(ring_prefix).unlink(missing_ok=True)


def owner_path(ring_prefix: str) -> Path:
    """Returns the path of the rings' owner file; see :func:`write_owner`."""
    return Path(f"{ring_prefix}owner")


def write_owner(ring_prefix: str, trace_path: Path, session: int, metadata: Any) -> None:
    """Writes the owner file, which names the process and the trace of rings in /dev/shm.

    Does nothing for rings in another directory.

    ``metadata`` is the metadata of the trace.

    Raises:
        OSError: the file cannot be written.
    """
    if Path(ring_prefix).parent == _MEMORY:
        known = {key: metadata[key] for key in ("pid", "machine", "clock")}
        word = {"trace": str(trace_path), "session": session, **known}
        # Mode "x" does not follow links, which any user could put into /dev/shm.
        with owner_path(ring_prefix).open("x") as file:
            json.dump(word, file)


def remove_orphans(memory: Path = _MEMORY) -> int:
    """Removes this user's rings if both their process and their trace are gone.

    ``memory`` is the directory of the ring files.

    Returns:
        The number of processes whose rings were removed.
    """
    removed = 0
    for path in sorted(memory.glob(f"commprof-{os.getuid()}-*-owner")):
        try:
            owner = read_json(path)
            orphaned = not os.path.exists(owner["trace"]) and state_of(owner) is State.GONE
            session = int(owner["session"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
        if orphaned:
            remove_rings(str(path).removesuffix("owner"), session)
            removed += 1
    return removed


def _owner_session(path: Path) -> int | None:
    try:
        return int(read_json(path)["session"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def ring_files(ring_prefix: str) -> Iterator[Path]:
    """Lists the ring files with this prefix.

    Lists only regular files, because the prefix comes from a trace that is not trusted.
    """
    if not ring_prefix:
        return
    directory, stem = os.path.split(ring_prefix)
    names = _names_in(directory or ".")
    following = islice(names, bisect_left(names, stem), None)
    for name in takewhile(lambda name: name.startswith(stem), following):
        path = os.path.join(directory, name)
        if _NUMBERED.fullmatch(name, len(stem)) and os.path.isfile(path):
            yield Path(path)


_NUMBERED: Final = re.compile(r"\d+\.ring")
#: The list of a directory that changed less than this long ago is not cached. The clock of file
#: times is coarse: a second change may leave the modification time as it is.
_UNSETTLED_NS: Final = 1_000_000_000


def _names_in(directory: str) -> Sequence[str]:
    """Lists a directory in order; caches the list until the directory changes."""
    try:
        changed_ns = os.stat(directory).st_mtime_ns
        if time.time_ns() - changed_ns < _UNSETTLED_NS:
            return sorted(os.listdir(directory))
        return _listing(directory, changed_ns)
    except (OSError, ValueError):  # ValueError: the prefix cannot be a path
        return ()


@functools.lru_cache(maxsize=1)
def _listing(directory: str, changed_ns: int) -> Sequence[str]:
    del changed_ns  # the parameter is only a key of the cache
    return sorted(os.listdir(directory))


def _session(header: bytes) -> int | None:
    if len(header) < schema.RING_HEADER_BYTES or not header.startswith(schema.RING_MAGIC):
        return None
    return int(schema.RING_HEADER.unpack_from(header)[4])


def ring_capacity(header: bytes, session: int, file_bytes: int) -> int:
    """Returns the capacity of a ring in records; 0 if the ring is foreign or damaged."""
    if _session(header) != session:
        return 0
    _, record_bytes, _, capacity, _ = schema.RING_HEADER.unpack_from(header)
    size = schema.RECORD_DTYPE.itemsize
    fits = record_bytes == size and file_bytes == schema.RING_HEADER_BYTES + capacity * size
    return int(capacity) if fits else 0


def _take_ring(header: bytes, data: bytes, content: RingContent) -> None:
    head, tail, dropped = (
        int.from_bytes(header[offset : offset + 8], "little")
        for offset in (schema.RING_HEAD_OFFSET, schema.RING_TAIL_OFFSET, schema.RING_DROPPED_OFFSET)
    )
    capacity = len(data) // schema.RECORD_DTYPE.itemsize
    count = head - tail
    if not 0 <= count <= capacity:
        return
    content.dropped += dropped
    if count:
        records = np.frombuffer(data, dtype=schema.RECORD_DTYPE, count=capacity)
        content.batches.append(records[(tail % capacity + np.arange(count)) % capacity])


_RECORD_BYTES = schema.RECORD_DTYPE.itemsize
#: A file with a larger capacity is not commprof's: the recorder's rings hold 16384 records.
_LARGEST_CAPACITY = 1 << 20


@dataclass
class _Open:
    fd: int
    capacity: int
    next: int


class RingTail:
    """Reads the newest records of one process. Not thread-safe; close it after use.

    The files stay open, so that records can be read even after the process has removed its rings.
    """

    def __init__(self, ring_prefix: str, session: int) -> None:
        """``ring_prefix`` comes from the trace's metadata, ``session`` from its header."""
        self._prefix = ring_prefix
        self._session = session
        self._rings: dict[Path, _Open] = {}
        #: Number of records that were overwritten before they were read.
        self.missed = 0

    @property
    def rings(self) -> int:
        """Number of rings found so far."""
        return len(self._rings)

    def poll(self) -> Records:
        """Returns the records pushed since the last call, sorted by time.

        The first call returns all records that the rings still hold.
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
        # a file that is not commprof's, or that is just being made
        if not 0 < capacity <= _LARGEST_CAPACITY:
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
        # Drop the oldest slots, which the thread may have overwritten meanwhile. The thread may be
        # overwriting one more slot now.
        valid = max(begin, _head(ring) - ring.capacity + 1)
        if ring.next:
            self.missed += max(min(valid, head) - ring.next, 0)
        ring.next = max(ring.next, head)
        records = np.frombuffer(bytes(data), schema.RECORD_DTYPE)
        return records[valid - begin :]


def _head(ring: _Open) -> int:
    return int.from_bytes(os.pread(ring.fd, 8, schema.RING_HEAD_OFFSET), "little")
