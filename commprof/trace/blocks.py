"""Splits the bytes of a trace into its complete blocks; what they hold is not looked at here.

Lengths are checked against the file before they are used, and payloads are not copied.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

from commprof.errors import TraceError
from commprof.trace import schema
from commprof.trace.schema import BlockType


@dataclass(frozen=True)
class Block:
    """One block of a trace whose checksum is right."""

    #: A ``BlockType``, or a type that this version does not know.
    type: int
    payload: memoryview


@dataclass(frozen=True)
class Blocks:
    """What a trace file holds, in file order."""

    #: Also stands in the ring files that belong to this trace.
    session: int
    blocks: tuple[Block, ...]
    #: Offset behind the last complete block: where another one would go.
    end: int
    #: What could not be read, in sentences.
    problems: tuple[str, ...]


def read_blocks(path: Path, data: bytes) -> Blocks:
    """Reads blocks up to the first byte that is in no complete block.

    Args:
        path: named in errors.
        data: the whole file.

    Raises:
        TraceError: no trace, or one of a version that this reader does not know.
    """
    session, at = _read_file_header(path, data)
    blocks: list[Block] = []
    problems: list[str] = []
    while at < len(data):
        length, problem = _payload_bytes(data, at)
        if problem:
            problems.append(problem)
            break
        begin = at + schema.BLOCK_HEADER.size
        _, block_type, _, crc, _ = schema.BLOCK_HEADER.unpack_from(data, at)
        payload = memoryview(data)[begin : begin + length]
        if block_type == BlockType.SPARE:
            pass  # room, or a summary that was being written: its checksum comes last
        elif zlib.crc32(payload) == crc:
            blocks.append(Block(block_type, payload))
        else:
            problems.append(f"the block at byte {at} has a wrong checksum and is left out")
        at = begin + length
    return Blocks(session, tuple(blocks), at, tuple(problems))


def pack_block(block_type: BlockType, payload: bytes) -> bytes:
    """Packs the bytes of one block."""
    header = (schema.BLOCK_MAGIC, block_type, len(payload), zlib.crc32(payload), 0)
    return schema.BLOCK_HEADER.pack(*header) + payload


def _read_file_header(path: Path, data: bytes) -> tuple[int, int]:
    """Returns the session and the offset of the first block."""
    if len(data) < schema.FILE_HEADER.size:
        raise TraceError(f"{path}: not a commprof trace (only {len(data)} bytes)")
    magic, version, header_bytes, session, _ = schema.FILE_HEADER.unpack_from(data)
    if magic != schema.TRACE_MAGIC:
        raise TraceError(f"{path}: not a commprof trace (it begins with {magic!r})")
    if version != schema.TRACE_VERSION:
        raise TraceError(
            f"{path}: trace version {version}; this commprof reads version {schema.TRACE_VERSION}"
        )
    if not schema.FILE_HEADER.size <= header_bytes <= len(data):
        raise TraceError(f"{path}: damaged: a file header of {header_bytes} bytes")
    return session, header_bytes


def _payload_bytes(data: bytes, at: int) -> tuple[int, str]:
    """Payload length of the block at ``at``, or why there is no complete block."""
    header = data[at : at + schema.BLOCK_HEADER.size]
    # The writer puts a block's header in place last; until then there is a hole.
    if len(header) < schema.BLOCK_HEADER.size or not any(header):
        return 0, f"cut off at byte {at}, before a block was complete"
    magic, _, length, _, _ = schema.BLOCK_HEADER.unpack(header)
    if magic != schema.BLOCK_MAGIC:
        return 0, f"no block at byte {at}; the rest is ignored"
    available = len(data) - at - len(header)
    if length > available:
        return 0, f"cut off: the block at byte {at} has {available} of {length} bytes"
    return length, ""
