"""Completes the trace of a process that was killed from the ring files it left behind."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from commprof.trace import schema
from commprof.trace.reader import read_trace
from commprof.trace.ring import read_rings, remove_rings


def salvage(path: Path) -> int:
    """Moves what a dead process left in its ring files into its trace.

    Call it only when the process is gone. Does nothing to a trace that was closed.

    Returns:
        The number of records moved.

    Raises:
        TraceError, OSError: the trace cannot be read or written.
    """
    trace = read_trace(path)
    if trace.complete:
        return 0
    ring_prefix = str(trace.metadata.get("ring_prefix", ""))
    with path.open("r+b") as file:
        header = file.read(schema.FILE_HEADER.size)
        session = int(schema.FILE_HEADER.unpack(header)[3])
        batches = read_rings(ring_prefix, session).batches
        moved = sum(len(batch) for batch in batches)
        if moved:
            payload = np.concatenate(batches).tobytes()
            file.seek(_end_of_blocks(path))
            file.write(
                schema.BLOCK_HEADER.pack(
                    schema.BLOCK_MAGIC,
                    schema.BlockType.RECORDS,
                    len(payload),
                    zlib.crc32(payload),
                    0,
                )
            )
            file.write(payload)
            file.truncate()
    remove_rings(ring_prefix)
    return moved


def _end_of_blocks(path: Path) -> int:
    """Offset behind the last complete block."""
    data = path.read_bytes()
    at = schema.FILE_HEADER.size
    while at + schema.BLOCK_HEADER.size <= len(data):
        magic, _, length, _, _ = schema.BLOCK_HEADER.unpack_from(data, at)
        end = at + schema.BLOCK_HEADER.size + length
        if magic != schema.BLOCK_MAGIC or end > len(data):
            break
        at = end
    return at
