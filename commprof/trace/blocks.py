"""Splits the bytes of a trace into its complete blocks, without reading their content.

Lengths are checked against the file's size before they are used, and payloads are not copied.
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
    """One block of a trace, with a correct checksum."""

    #: A ``BlockType``, or a type that this version does not know.
    type: int
    payload: memoryview


@dataclass(frozen=True)
class Blocks:
    """The blocks of a trace file, in file order."""

    #: Random number of the recording; the ring files that belong to this trace hold it too.
    session: int
    blocks: tuple[Block, ...]
    #: Offset after the last complete block, where another block would be appended.
    end: int
    #: Sentences about parts that could not be read.
    problems: tuple[str, ...]


def read_blocks(path: Path, data: bytes) -> Blocks:
    """Reads blocks up to the first byte that is not part of a complete block.

    Args:
        path: path for error messages.
        data: bytes of the file.

    Raises:
        TraceError: the file is not a trace, or has a version that this reader does not know.
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
            pass  # reserved space, or a summary being written, whose checksum comes last
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
    """Returns the session number of the recording, and the offset of the first block."""
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
        raise TraceError(f"{path}: damaged: its file header claims to be {header_bytes} bytes long")
    return session, header_bytes


def _payload_bytes(data: bytes, at: int) -> tuple[int, str]:
    """Returns the payload length of the block at ``at``, and ""; or 0, and what is wrong."""
    header = data[at : at + schema.BLOCK_HEADER.size]
    # The writer writes a block's header last; until then the file has a hole there.
    if len(header) < schema.BLOCK_HEADER.size or not any(header):
        return 0, f"cut off at byte {at}, before a block was complete"
    magic, _, length, _, _ = schema.BLOCK_HEADER.unpack(header)
    if magic != schema.BLOCK_MAGIC:
        return 0, f"no block header at byte {at}; the rest of the file is ignored"
    available = len(data) - at - len(header)
    if length > available:
        return 0, f"cut off: the block at byte {at} has {available} of {length} bytes"
    return length, ""
