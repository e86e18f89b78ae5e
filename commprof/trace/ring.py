"""Reads ring files: what a process recorded but had not yet flushed when it died."""

from __future__ import annotations

from dataclasses import dataclass, field
from glob import escape, glob
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commprof.trace import schema


@dataclass
class RingContent:
    """Undrained records of all rings of one process."""

    batches: list[npt.NDArray[np.void]] = field(default_factory=list)
    dropped: int = 0


def read_rings(ring_prefix: str, session: int) -> RingContent:
    """Reads the ring files ``ring_prefix*.ring`` that belong to the trace ``session``.

    Files that are missing, foreign or damaged are passed over. ``ring_prefix`` comes from
    a trace's metadata; an empty one means that the rings died with their process.
    """
    content = RingContent()
    if ring_prefix:
        for name in sorted(glob(escape(ring_prefix) + "*.ring")):
            _read_ring(Path(name), session, content)
    return content


def remove_rings(ring_prefix: str) -> None:
    """Removes the ring files of a process that is gone."""
    if ring_prefix:
        for name in glob(escape(ring_prefix) + "*.ring"):
            Path(name).unlink(missing_ok=True)


def _read_ring(path: Path, session: int, content: RingContent) -> None:
    try:
        data = path.read_bytes()
    except OSError:
        return
    if len(data) < schema.RING_HEADER_BYTES:
        return
    magic, record_bytes, _, capacity, ring_session = schema.RING_HEADER.unpack_from(data)
    slots = (len(data) - schema.RING_HEADER_BYTES) // schema.RECORD_DTYPE.itemsize
    if (
        magic != schema.RING_MAGIC
        or record_bytes != schema.RECORD_DTYPE.itemsize
        or ring_session != session
        or capacity == 0
        or capacity > slots
    ):
        return
    head, tail, dropped = (
        int.from_bytes(data[offset : offset + 8], "little")
        for offset in (schema.RING_HEAD_OFFSET, schema.RING_TAIL_OFFSET, schema.RING_DROPPED_OFFSET)
    )
    content.dropped += dropped
    count = head - tail
    if 0 < count <= capacity:
        records = np.frombuffer(
            data, dtype=schema.RECORD_DTYPE, count=capacity, offset=schema.RING_HEADER_BYTES
        )
        order = np.arange(tail, head, dtype=np.uint64) % np.uint64(capacity)
        content.batches.append(records[order])
