"""Reads one rank's trace file, whole or cut off, into typed columns.

Nothing in a file is trusted: lengths are checked against the file before anything is
allocated, blocks against their checksum. What cannot be read is reported in
``Trace.problems``; everything before it is kept.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from commprof.errors import CommprofError
from commprof.trace import schema
from commprof.trace.ring import read_rings
from commprof.trace.schema import BlockType

Records = npt.NDArray[np.void]


class TraceError(CommprofError):
    """The file is no trace of commprof, or of a version this reader does not know."""


@dataclass(frozen=True)
class Group:
    """One process group, as the rank that wrote the trace saw it."""

    id: int
    name: str
    description: str
    backend: str
    rank: int
    size: int


@dataclass(frozen=True)
class Trace:
    """Everything that one rank recorded."""

    path: Path
    #: Machine, versions, rank and world size, clock anchor; see ``docs/trace_format.md``.
    metadata: dict[str, Any]
    groups: dict[int, Group]
    #: ``schema.RECORD_DTYPE``, ordered by ``timestamp_ns``.
    records: Records
    #: False if the process died before it closed the trace.
    complete: bool
    #: Records that no ring had room for.
    dropped: int
    #: What could not be read, in sentences; empty for a sound trace.
    problems: tuple[str, ...]

    @property
    def rank(self) -> int:
        """Global rank of the process that wrote the trace."""
        return int(self.metadata["rank"])

    @property
    def world_size(self) -> int:
        """Number of ranks in the job."""
        return int(self.metadata["world_size"])


@dataclass
class _Content:
    """Blocks read so far."""

    metadata: dict[str, Any] | None
    groups: dict[int, Group]
    batches: list[Records]
    end: dict[str, Any] | None
    problems: list[str]


def read_trace(path: Path) -> Trace:
    """Reads the trace at ``path``.

    A trace without its closing block was cut off: the process was killed, or still runs.
    Its newest records are then taken from the ring files, if they are still there.

    Raises:
        TraceError: the file is no trace, or none of its metadata can be read.
        OSError: the file cannot be opened.
    """
    data = path.read_bytes()
    session = _check_header(path, data)
    content = _Content(None, {}, [], None, [])
    _read_blocks(data, content)
    if content.metadata is None:
        raise TraceError(f"{path}: no readable metadata block; the trace was cut off at its start")
    dropped = int(content.end["dropped"]) if content.end else 0
    if content.end is None:
        rings = read_rings(str(content.metadata.get("ring_prefix", "")), session)
        content.batches.extend(rings.batches)
        dropped += rings.dropped
    return Trace(
        path=path,
        metadata=content.metadata,
        groups=content.groups,
        records=_merge(content.batches, deduplicate=content.end is None),
        complete=content.end is not None,
        dropped=dropped,
        problems=tuple(content.problems),
    )


def _check_header(path: Path, data: bytes) -> int:
    """Returns the session number of a file that is a trace of a known version."""
    if len(data) < schema.FILE_HEADER.size:
        raise TraceError(f"{path}: not a commprof trace (only {len(data)} bytes)")
    magic, version, _, session, _ = schema.FILE_HEADER.unpack_from(data)
    if magic != schema.TRACE_MAGIC:
        raise TraceError(f"{path}: not a commprof trace (it begins with {magic!r})")
    if version != schema.TRACE_VERSION:
        raise TraceError(
            f"{path}: trace version {version}; this commprof reads version {schema.TRACE_VERSION}"
        )
    return int(session)


def _read_blocks(data: bytes, content: _Content) -> None:
    at = schema.FILE_HEADER.size
    while at < len(data):
        if at + schema.BLOCK_HEADER.size > len(data):
            content.problems.append(f"cut off at byte {at}, inside a block header")
            return
        magic, block_type, length, crc, _ = schema.BLOCK_HEADER.unpack_from(data, at)
        begin = at + schema.BLOCK_HEADER.size
        if magic != schema.BLOCK_MAGIC:
            content.problems.append(f"no block at byte {at}; the rest is ignored")
            return
        if length > len(data) - begin:
            content.problems.append(
                f"cut off at byte {len(data)}, inside a block of {length} bytes"
            )
            return
        payload = memoryview(data)[begin : begin + length]
        at = begin + length
        if zlib.crc32(payload) != crc:
            content.problems.append(f"checksum of the block before byte {at} is wrong; left out")
            continue
        _take_block(block_type, payload, content)


def _take_block(block_type: int, payload: memoryview, content: _Content) -> None:
    """Stores one block; unknown types are skipped, so that the format can grow."""
    if block_type == BlockType.RECORDS:
        usable = len(payload) - len(payload) % schema.RECORD_DTYPE.itemsize
        content.batches.append(np.frombuffer(payload[:usable], dtype=schema.RECORD_DTYPE))
        return
    try:
        if block_type == BlockType.METADATA and content.metadata is None:
            metadata = _json_object(payload)
            metadata["rank"], metadata["world_size"] = (
                int(metadata["rank"]),
                int(metadata["world_size"]),
            )
            content.metadata = metadata
        elif block_type == BlockType.GROUP:
            group = Group(**_json_object(payload))
            content.groups[int(group.id)] = group
        elif block_type == BlockType.END:
            end = _json_object(payload)
            end["dropped"] = int(end["dropped"])
            content.end = end
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        content.problems.append(f"a block of type {block_type} is not readable: {error}")


def _json_object(payload: memoryview) -> dict[str, Any]:
    value = json.loads(bytes(payload))
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _merge(batches: list[Records], deduplicate: bool) -> Records:
    """All records by time; a record flushed and still in its ring counts once."""
    if not batches:
        return np.empty(0, dtype=schema.RECORD_DTYPE)
    records = np.concatenate(batches)
    if deduplicate:
        raw = np.ascontiguousarray(records).view(f"V{schema.RECORD_DTYPE.itemsize}")
        _, first = np.unique(raw, return_index=True)
        records = records[np.sort(first)]
    return records[np.argsort(records["timestamp_ns"], kind="stable")]
