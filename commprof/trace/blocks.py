"""Splits a trace file into its complete blocks, without reading their content.

Lengths are checked against the file's size before they are used. Only one block at a time is in
memory, unless the caller keeps more.
"""

from __future__ import annotations

import errno
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from commprof.errors import TraceError
from commprof.files import available_memory_bytes
from commprof.trace import schema
from commprof.trace.schema import BlockType

#: A block up to this size is read without a check of the available memory.
_SURELY_FITS_BYTES = 64 << 20


@dataclass(frozen=True)
class Block:
    """One block of a trace, with a correct checksum."""

    #: A ``BlockType``, or a type that this version does not know.
    type: int
    payload: memoryview


@dataclass(frozen=True)
class Blocks:
    """The blocks of a trace file, in file order."""

    #: Random number of the recording; the recording's ring files hold the same number.
    session: int
    blocks: tuple[Block, ...]
    #: Offset after the last complete block, where another block would be appended.
    end: int
    #: Sentences about parts that could not be read.
    problems: tuple[str, ...]


@dataclass
class BlockStream:
    """Reads a trace file block by block, up to the first incomplete block.

    ``end`` and ``problems`` are those of :class:`Blocks` for the part that was read.
    """

    _path: Path
    _file: BinaryIO
    session: int = 0
    end: int = 0
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Reads the file's header.

        Raises:
            TraceError: the file is not a trace, or has a version that this reader does not know.
        """
        self._file_bytes = self._file.seek(0, io.SEEK_END)
        self._file.seek(0)
        header = self._file.read(schema.FILE_HEADER.size)
        self.session, self.end = _read_file_header(self._path, header, self._file_bytes)

    def __iter__(self) -> Iterator[Block]:
        """Yields the blocks with a correct checksum, in file order.

        Raises:
            OSError: a block is larger than 64 MiB and than half of the machine's available memory.
        """
        while self.end < self._file_bytes:
            self._file.seek(self.end)
            header = self._file.read(schema.BLOCK_HEADER.size)
            length, problem = self._payload_bytes(header)
            if problem:
                self.problems.append(problem)
                return
            _, block_type, _, crc, _ = schema.BLOCK_HEADER.unpack(header)
            begin, self.end = self.end, self.end + len(header) + length
            if block_type == BlockType.SPARE:
                # Reserved space, or a block whose content is being replaced: the writer sets type
                # and checksum last.
                continue
            payload = self._file.read(length)
            if zlib.crc32(payload) == crc:
                yield Block(block_type, memoryview(payload))
            else:
                said = f"the block at byte {begin} has a wrong checksum and is left out"
                self.problems.append(said)

    def _payload_bytes(self, header: bytes) -> tuple[int, str]:
        """Returns the payload length of the block at ``end``, and a sentence about an error.

        The sentence is empty if the block has no error.
        """
        # The writer writes a block's header last; until then its bytes are 0.
        if len(header) < schema.BLOCK_HEADER.size or not any(header):
            return 0, f"cut off at byte {self.end}, before a block was complete"
        magic, _, length, _, _ = schema.BLOCK_HEADER.unpack(header)
        if magic != schema.BLOCK_MAGIC:
            return 0, f"no block header at byte {self.end}; the rest of the file is ignored"
        available = self._file_bytes - self.end - len(header)
        if length > available:
            problem = f"cut off: the block at byte {self.end} has {available} of {length} bytes"
            return 0, problem
        if length > _SURELY_FITS_BYTES and length > available_memory_bytes() // 2:
            problem = (
                f"the block at byte {self.end} has {length:,} bytes, more than half of the memory "
                "that is available"
            )
            raise OSError(errno.EFBIG, problem, str(self._path))
        return length, ""


def read_blocks(path: Path, data: bytes) -> Blocks:
    """Reads blocks up to the first incomplete block.

    Args:
        path: path for error messages.
        data: bytes of the file.

    Raises:
        TraceError: the file is not a trace, or has a version that this reader does not know.
    """
    stream = BlockStream(path, io.BytesIO(data))
    blocks = tuple(stream)
    return Blocks(stream.session, blocks, stream.end, tuple(stream.problems))


def pack_block(block_type: BlockType, payload: bytes) -> bytes:
    """Returns the bytes of one block with its header."""
    header = (schema.BLOCK_MAGIC, block_type, len(payload), zlib.crc32(payload), 0)
    return schema.BLOCK_HEADER.pack(*header) + payload


def _read_file_header(path: Path, header: bytes, file_bytes: int) -> tuple[int, int]:
    if len(header) < schema.FILE_HEADER.size:
        raise TraceError(f"{path}: not a commprof trace (only {file_bytes} bytes)")
    magic, version, header_bytes, session, _ = schema.FILE_HEADER.unpack(header)
    if magic != schema.TRACE_MAGIC:
        raise TraceError(f"{path}: not a commprof trace (it begins with {magic!r})")
    if version != schema.TRACE_VERSION:
        raise TraceError(
            f"{path}: trace version {version}; this commprof reads version {schema.TRACE_VERSION}"
        )
    if not schema.FILE_HEADER.size <= header_bytes <= file_bytes:
        raise TraceError(f"{path}: damaged: its file header claims to be {header_bytes} bytes long")
    return session, header_bytes
