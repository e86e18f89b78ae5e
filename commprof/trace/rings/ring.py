"""Ring files: what a process recorded but had not yet flushed when it died."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from glob import escape, glob
from pathlib import Path
from typing import Any

import numpy as np

from commprof.files import open_regular, read_json
from commprof.trace import schema
from commprof.trace.run.processes import State, state_of
from commprof.trace.schema import Records

#: Where rings live if there is room.
_MEMORY = Path("/dev/shm")


@dataclass
class RingContent:
    """Undrained records of all rings of one process."""

    batches: list[Records] = field(default_factory=list)
    dropped: int = 0


def read_rings(ring_prefix: str, session: int) -> RingContent:
    """Reads the ring files ``<ring_prefix><n>.ring`` that belong to the trace ``session``.

    Files that are missing, foreign or damaged are passed over. ``ring_prefix`` comes from
    a trace's metadata; an empty one means that the rings died with their process.
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
    """Records that the rings of a running process had no room for; reads their headers alone."""
    dropped = 0
    for path in ring_files(ring_prefix):
        try:
            with open_regular(path) as file:
                header = file.read(schema.RING_HEADER_BYTES)
        except OSError:
            continue
        if _session(header) == session:
            at = schema.RING_DROPPED_OFFSET
            dropped += int.from_bytes(header[at : at + 8], "little")
    return dropped


def has_rings(ring_prefix: str) -> bool:
    """Whether a process left ring files under that name."""
    return any(True for _ in ring_files(ring_prefix))


def remove_rings(ring_prefix: str, session: int) -> None:
    """Removes the ring files of a process that is gone, and no others."""
    if not ring_prefix:
        return
    for path in ring_files(ring_prefix):
        try:
            with open_regular(path) as file:
                header = file.read(schema.RING_HEADER_BYTES)
            # One without a header was just being made.
            if not any(header) or _session(header) == session:
                path.unlink()
        except OSError:
            continue
    if _owner_session(owner_path(ring_prefix)) == session:
        owner_path(ring_prefix).unlink(missing_ok=True)


def owner_path(ring_prefix: str) -> Path:
    """The file that says whose rings those are; see :func:`write_owner`."""
    return Path(f"{ring_prefix}owner")


def write_owner(ring_prefix: str, trace_path: Path, session: int, metadata: Any) -> None:
    """Leaves word beside rings in memory, for :func:`remove_orphans`; raises OSError.

    ``metadata`` is that of the trace.
    """
    if Path(ring_prefix).parent == _MEMORY:
        known = {key: metadata[key] for key in ("pid", "machine", "clock")}
        word = {"trace": str(trace_path), "session": session, **known}
        with owner_path(ring_prefix).open(
            "x"
        ) as file:  # /dev/shm is everybody's: never through a link
            json.dump(word, file)


def remove_orphans(memory: Path = _MEMORY) -> int:
    """Removes rings that nobody will read: their process is gone, and so is their trace.

    Those of a trace that is still there stay for ``salvage``. Only this user's are looked at.

    Returns:
        How many processes left such rings.
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
    """Those of that name; regular files only, for a trace may name anything."""
    if not ring_prefix:
        return
    name = re.compile(re.escape(ring_prefix) + r"\d+\.ring")
    for path in sorted(glob(escape(ring_prefix) + "*.ring")):
        if name.fullmatch(path) and os.path.isfile(path):
            yield Path(path)


def _session(header: bytes) -> int | None:
    if len(header) < schema.RING_HEADER_BYTES or not header.startswith(schema.RING_MAGIC):
        return None
    return int(schema.RING_HEADER.unpack_from(header)[4])


def ring_capacity(header: bytes, session: int, file_bytes: int) -> int:
    """Records that the ring has room for; 0 if it is foreign or damaged."""
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
