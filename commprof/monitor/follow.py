"""Reads traces while the ranks still write them.

The writer writes a block's header after its payload, so a block is visible as a whole or not at
all. A written block does not change, unless it is a summary. Summaries are overwritten in a few
reserved blocks (slots), which every poll checks for changes (``docs/architecture.md``).

Files may be damaged. A length is checked against the file size before memory is allocated, and
``problems`` lists the parts that cannot be read.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from commprof.errors import TraceError
from commprof.files import descriptor_of_regular
from commprof.trace import schema
from commprof.trace.blocks import Block
from commprof.trace.documents import Group
from commprof.trace.reader import TraceContent, take_block, take_newest_summary
from commprof.trace.ring import dropped_so_far
from commprof.trace.run.endings import attempt_paths, rank_and_attempt
from commprof.trace.schema import BlockType, Kind, Records
from commprof.trace.summary import Summary

#: Larger blocks are skipped. A flush writes at most 1 MiB for each thread.
_LARGEST_BLOCK_BYTES = 256 << 20
_BYTES_PER_POLL = 32 << 20
#: Number of polls that read a block again if its checksum is wrong: the block may be incomplete.
_RETRIES = 3
_MOST_PROBLEMS = 20

_NO_RECORDS: Records = np.empty(0, dtype=schema.RECORD_DTYPE)


class TraceTail:
    """Reads one growing trace file. Not thread-safe. Close the object, or use it in ``with``.

    The file stays open, so reading goes on even if the file is deleted. If the recorder creates the
    file again, reading continues in the new file.
    """

    def __init__(self, path: Path, recent_bytes: int | None = None) -> None:
        """Opens no file yet: the first :meth:`poll` does, once the file exists.

        Args:
            path: the trace.
            recent_bytes: when the file is opened, records before its last ``recent_bytes`` bytes
                are skipped; None to skip none. Metadata, groups and summaries are always read.
        """
        self.path = path
        #: Sentences about parts that could not be read; at most the first ``_MOST_PROBLEMS``.
        self.problems: list[str] = []
        self._recent_bytes = recent_bytes
        self._fd = -1
        self._session = 0
        self._at = 0
        self._content = TraceContent()
        self._skip_before = 0
        self._broken = False
        self._retries = 0
        self._caught_up = False
        #: Number of records lost in the rings; None if not read since the last poll.
        self._dropped_in_rings: int | None = None
        self._budget = 0
        #: Last checksum of each summary slot, by the slot's offset.
        self._slots: dict[int, int] = {}

    @property
    def metadata(self) -> dict[str, Any] | None:
        """Metadata as in :class:`commprof.trace.reader.Trace`; None until written."""
        return self._content.metadata

    @property
    def groups(self) -> dict[int, Group]:
        """Process groups read so far, by this rank's id of the group."""
        return self._content.groups

    @property
    def stacks(self) -> dict[int, tuple[str, ...]]:
        """Stacks read so far, by id."""
        return self._content.stacks

    @property
    def summary(self) -> Summary | None:
        """The newest summary of always-on mode; None if the mode was never active."""
        return self._content.summary

    @property
    def closed(self) -> bool:
        """True if the rank's own capture closed the trace."""
        return self._content.complete

    @property
    def recording(self) -> bool:
        """False while the mode is "off", or recording is switched off."""
        summary, state = self._content.summary, (self.metadata or {}).get("capture_state", {})
        return bool(state.get("recording", True)) and (summary is None or summary.mode != "off")

    @property
    def ended(self) -> bool:
        """True if capture closed the trace, or commprof salvaged it after the rank's death."""
        return self._content.complete or self._content.salvaged

    @property
    def dropped(self) -> int:
        """Number of records lost so far."""
        summary = self._content.summary
        dropped = max(self._content.dropped, summary.dropped if summary is not None else 0)
        if self.ended or self.metadata is None:
            return dropped
        if self._dropped_in_rings is None:
            prefix = self.metadata["ring_prefix"]
            self._dropped_in_rings = dropped_so_far(prefix, self._session)
        return max(dropped, self._dropped_in_rings)

    @property
    def length_bytes(self) -> int:
        """Length of the file; 0 if it does not exist yet."""
        return self._size() if self._fd >= 0 else 0

    @property
    def caught_up(self) -> bool:
        """True if the last poll reached the end of the file's complete blocks."""
        return self._caught_up

    @property
    def in_doubt(self) -> bool:
        """True while a block has a wrong checksum but may only be incomplete."""
        return self._retries > 0 and not self._broken

    def poll(self) -> Records:
        """Returns the records of newly completed blocks, ordered by time.

        Records of different threads may be out of order across calls, by up to 0.2 s. If reading
        fails, the reason is added to ``problems``.
        """
        try:
            if self._fd < 0 and not self._open():
                return _NO_RECORDS
            self._budget = _BYTES_PER_POLL
            self._dropped_in_rings = None
            self._follow_to_new_file()
            self._look_at_summaries()
            self._caught_up = self._read_blocks()
        except OSError as error:
            self._complain(f"the trace cannot be read: {error.strerror}")
        return self._taken()

    def close(self) -> None:
        """Closes the file; data that was read stays available."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._broken = True

    def __enter__(self) -> TraceTail:
        """Returns the tail itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the file."""
        self.close()

    def _open(self) -> bool:
        if self._broken:
            return False
        try:
            fd = descriptor_of_regular(self.path)
        except FileNotFoundError:
            return False
        header = self._file_header(fd)
        if len(header) < schema.FILE_HEADER.size:
            os.close(fd)  # the rank has created the file and not written to it yet
            return False
        magic, version, header_bytes, session, _ = schema.FILE_HEADER.unpack(header)
        self._fd, self._at, self._session = fd, header_bytes, session
        if magic != schema.TRACE_MAGIC or version != schema.TRACE_VERSION:
            self._stop(f"the file is not a commprof trace of version {schema.TRACE_VERSION}")
        elif header_bytes < schema.FILE_HEADER.size:
            self._stop(
                f"the trace is damaged: its file header claims to be {header_bytes} bytes long"
            )
        if self._recent_bytes is not None:
            self._skip_before = self._size() - self._recent_bytes
        return True

    def _follow_to_new_file(self) -> None:
        """Continues in the new file if the file was removed and the recorder created it again.

        The new file begins with a copy of the old file, so the position stays valid.
        """
        old = os.fstat(self._fd)
        if self._broken or old.st_nlink:
            return
        try:
            fd = descriptor_of_regular(self.path)
        except OSError:
            return
        try:
            header, own_header = (os.pread(f, schema.FILE_HEADER.size, 0) for f in (fd, self._fd))
            if header == own_header and os.fstat(fd).st_size >= old.st_size:
                fd, self._fd = self._fd, fd
        finally:
            os.close(fd)

    def _file_header(self, fd: int) -> bytes:
        try:
            return os.pread(fd, schema.FILE_HEADER.size, 0)
        except OSError:
            os.close(fd)
            self._broken = True
            raise

    def _size(self) -> int:
        return os.fstat(self._fd).st_size

    def _look_at_summaries(self) -> None:
        changed: list[memoryview] = []
        for offset, seen in self._slots.items():
            header = os.pread(self._fd, schema.BLOCK_HEADER.size, offset)
            if len(header) < schema.BLOCK_HEADER.size:
                continue
            magic, block_type, length, crc, _ = schema.BLOCK_HEADER.unpack(header)
            if magic != schema.BLOCK_MAGIC or block_type != BlockType.SUMMARY or crc == seen:
                continue  # unchanged, or being written
            payload = self._payload(offset, length)
            if payload is not None and zlib.crc32(payload) == crc:
                self._slots[offset] = crc
                changed.append(memoryview(payload))
        if changed:
            take_newest_summary(changed, self._content)

    def _read_blocks(self) -> bool:
        while not self._broken and self._budget > 0:
            header = os.pread(self._fd, schema.BLOCK_HEADER.size, self._at)
            if len(header) < schema.BLOCK_HEADER.size or not any(header):
                return True  # until a block is complete, its header's bytes are missing or zero
            magic, block_type, length, crc, _ = schema.BLOCK_HEADER.unpack(header)
            if magic != schema.BLOCK_MAGIC:
                self._doubt(
                    f"there is no block header at byte {self._at}; the rest is ignored", None
                )
                return True
            end = self._at + len(header) + length
            if end > self._size():
                return True  # truncated, or being cut back because the disk is full
            if not self._read_block(block_type, length, crc, end):
                return True
            self._at, self._retries = end, 0
        return self._broken

    def _read_block(self, block_type: int, length: int, crc: int, end: int) -> bool:
        """Reads the block at ``_at``; False if the next poll should read the block again."""
        if block_type in (BlockType.SUMMARY, BlockType.SPARE):
            self._slots[self._at] = 0 if block_type == BlockType.SPARE else crc
        if block_type == BlockType.SPARE:
            return True
        if block_type == BlockType.RECORDS and end <= self._skip_before:
            return True
        if length > _LARGEST_BLOCK_BYTES:
            self._complain(f"the block at byte {self._at} is left out: {length} bytes are too many")
            return True
        payload = self._payload(self._at, length)
        if payload is None:
            return False
        if zlib.crc32(payload) == crc:
            self._take(Block(block_type, memoryview(payload)))
            return True
        if block_type == BlockType.SUMMARY:
            self._slots[self._at] = 0  # the rank is writing it; the next poll reads it
            return True
        problem = f"the block at byte {self._at} has a wrong checksum and is left out"
        return self._doubt(problem, end)

    def _payload(self, offset: int, length: int) -> bytes | None:
        begin = offset + schema.BLOCK_HEADER.size
        if length > _LARGEST_BLOCK_BYTES or begin + length > self._size():
            return None
        payload = os.pread(self._fd, length, begin)
        self._budget -= length
        return payload if len(payload) == length else None

    def _take(self, block: Block) -> None:
        try:
            take_block(self.path, block, self._content)
        except TraceError as error:
            self._stop(str(error))

    def _taken(self) -> Records:
        content = self._content
        for problem in content.problems:
            self._complain(problem)
        content.problems.clear()
        batches = [batch for batch in content.batches if len(batch)]
        content.batches.clear()
        if not batches:
            return _NO_RECORDS
        records = np.concatenate(batches)
        records = records[records["kind"] != Kind.NONE]
        return records[np.argsort(records["timestamp_ns"], kind="stable")]

    def _doubt(self, problem: str, end: int | None) -> bool:
        """Counts failed reads of a block; returns True if the block should now be skipped.

        ``end`` is the offset of the next block. If ``end`` is None, the block cannot be skipped:
        after a few failed reads, the rest of the file is ignored.
        """
        self._retries += 1
        if self._retries <= _RETRIES:
            return False
        if end is None:
            self._stop(problem)
            return False
        self._complain(problem)
        return True

    def _stop(self, problem: str) -> None:
        self._broken = True
        self._complain(problem)

    def _complain(self, problem: str) -> None:
        if len(self.problems) < _MOST_PROBLEMS and problem not in self.problems:
            self.problems.append(problem)


#: Patterns of the directories that may hold traces, relative to the run directory.
_PLACES: Final = (".", "job_*", "world_*", "world_*/job_*", "*/world_*")
_MOST_RANKS: Final = 4096


def newest_job(run: Path, nested: bool = True) -> Path | None:
    """Finds the directory whose traces were written to last; None if there are no traces yet.

    If ``nested`` is False, the subdirectories of ``run`` are not searched.
    """
    newest: tuple[int, Path] | None = None
    for pattern in _PLACES if nested else _PLACES[:1]:
        for directory in [run] if pattern == "." else _found(run, pattern):
            at_ns = max((written_ns(path) for path in _traces(directory).values()), default=0)
            if at_ns and (newest is None or at_ns > newest[0]):
                newest = at_ns, directory
    return newest[1] if newest else None


class JobTail:
    """Follows the traces of one job: for each rank, the trace of the rank's last attempt."""

    def __init__(
        self, directory: Path, recent_bytes: int | None = None, only_rank: int | None = None
    ) -> None:
        """Opens no file yet.

        Args:
            directory: the directory that holds the traces.
            recent_bytes: as for :class:`TraceTail`.
            only_rank: the one rank to follow; None to follow all.
        """
        self.directory = directory
        #: Tails whose metadata was read, by rank.
        self.tails: dict[int, TraceTail] = {}
        self._recent_bytes = recent_bytes
        self._only_rank = only_rank
        self._open: dict[Path, TraceTail] = {}
        #: Tail of each rank's last attempt, by the rank in the file's name.
        self._last: dict[int, TraceTail] = {}
        #: Trace of each rank that is not followed; None if the trace is not known yet.
        self._left: dict[int, Path | None] = {}
        self.restarts = 0

    @property
    def caught_up(self) -> bool:
        """True if the last poll reached the end of every trace."""
        in_doubt = any(tail.in_doubt for tail in self.unread.values())
        return not in_doubt and all(tail.caught_up for tail in self.tails.values())

    @property
    def unread(self) -> dict[int, TraceTail]:
        """Tails of traces whose metadata was not read, by rank.

        If the metadata cannot be read, the tail's ``problems`` hold the reason.
        """
        return {rank: tail for rank, tail in self._last.items() if tail.metadata is None}

    def leave(self, ranks: Collection[int]) -> None:
        """Stops following these ranks until they begin a new trace; follows all other ranks.

        A rank whose newest trace has no metadata yet is followed nevertheless.
        """
        paths = {rank: tail.path for rank, tail in self.tails.items()}
        unread = self.unread
        self._left = {
            rank: paths.get(rank, self._left.get(rank)) for rank in ranks if rank not in unread
        }
        for path, tail in list(self._open.items()):
            rank = (rank_and_attempt(path) or (-1, 0))[0]
            if rank in self._left:
                tail.close()
                del self._open[path]
                self._last.pop(rank, None)
                self.tails.pop(rank, None)

    def poll(self) -> dict[int, Records]:
        """Returns new records by rank."""
        for rank, path in list(_traces(self.directory).items())[:_MOST_RANKS]:
            if rank in self._left:
                self._left[rank] = self._left[rank] or path
                if self._left[rank] == path:
                    continue
            if path not in self._open and self._only_rank in (None, rank):
                self._open[path] = self._last[rank] = TraceTail(path, self._recent_bytes)
        found: dict[int, Records] = {}
        for path, tail in list(self._open.items()):
            records = tail.poll()
            if tail.metadata is None:
                continue
            rank = int(tail.metadata["rank"])
            before = self.tails.get(rank)
            if before is not None and before is not tail:
                if _attempt(path) < _attempt(before.path):
                    tail.close()
                    continue
                before.close()
                self.restarts += 1
                found.pop(rank, None)
            self.tails[rank] = tail
            found[rank] = records
        return found

    def close(self) -> None:
        """Closes all files."""
        for tail in self._open.values():
            tail.close()


def _traces(directory: Path) -> dict[int, Path]:
    try:
        attempts = attempt_paths(directory)
    except OSError:
        return {}
    return {rank: path for paths in attempts.values() for rank, path in paths.items()}


def _attempt(path: Path) -> int:
    return (rank_and_attempt(path) or (0, 0))[1]


def _found(run: Path, pattern: str) -> Iterator[Path]:
    try:
        yield from sorted(run.glob(pattern))
    except OSError:
        return


def written_ns(path: Path) -> int:
    """Time of the last write to a file, in nanoseconds since the epoch; 0 if there is no file."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
