"""Completes the trace of a process that was killed from the ring files it left behind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from commprof.errors import TraceError
from commprof.files import read_bytes
from commprof.trace.blocks import pack_block, read_blocks
from commprof.trace.reader import read_trace
from commprof.trace.ring import has_rings, read_rings, remove_rings
from commprof.trace.run.processes import State, state_of
from commprof.trace.schema import BlockType


def salvage(path: Path) -> int:
    """Moves what a dead process left in its ring files into its trace, and removes the files.

    Call it only when the process is gone. A trace that was closed, or salvaged before, stays
    as it is.

    Returns:
        The number of records moved.

    Raises:
        TraceError, OSError: the trace cannot be read or written; the ring files are then kept.
    """
    trace = read_trace(path)
    found = read_blocks(path, read_bytes(path))
    ring_prefix = trace.metadata["ring_prefix"]
    moved = 0
    done = {BlockType.END, BlockType.SALVAGED} & {block.type for block in found.blocks}
    if not done:
        rings = read_rings(ring_prefix, found.session)
        if trace.summary is not None and trace.summary.mode != "full":
            rings.batches.clear()  # as the reader does
        moved = sum(len(batch) for batch in rings.batches)
        counters = json.dumps({"records": moved, "dropped": rings.dropped}).encode()
        blocks = pack_block(BlockType.SALVAGED, counters)
        if moved:
            records = np.concatenate(rings.batches).tobytes()
            blocks = pack_block(BlockType.RECORDS, records) + blocks
        _append(path, found.end, blocks)
    remove_rings(ring_prefix, found.session)
    return moved


def salvage_dead(directory: Path) -> None:
    """Salvages the traces in a run directory whose processes left rings and are gone.

    A process is known to be gone only on the machine, since the boot, and in the PID namespace
    that it ran in. Nothing is done where that is not known, or where files cannot be written.
    """
    for path in sorted([*directory.glob("rank_*.trace"), *directory.glob("world_*/rank_*.trace")]):
        try:
            trace = read_trace(path)
            if not has_rings(trace.metadata["ring_prefix"]):
                continue
            if state_of(trace.metadata) is State.GONE:
                salvage(path)
        except (OSError, TraceError):
            continue  # the report will say what is wrong with it


def _append(path: Path, end: int, blocks: bytes) -> None:
    """Writes behind the last complete block, or leaves the file ending there."""
    with path.open("r+b", buffering=0) as file:
        file.truncate(end)
        file.seek(end)
        try:
            written = file.write(blocks)
            if written != len(blocks):
                raise OSError(f"{path}: only {written} of {len(blocks)} bytes could be written")
        except OSError:
            file.truncate(end)
            raise
