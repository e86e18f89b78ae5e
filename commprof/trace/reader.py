"""Reads one rank's trace file, complete or cut off.

Nothing in a file is trusted: lengths, checksums and the types of JSON values are checked.
``Trace.problems`` names the parts that cannot be read. All other parts are kept.

Scripts that read or make traces import ``read_trace`` and ``read_first_metadata`` from here.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from commprof.errors import TraceError
from commprof.files import names_in, open_regular
from commprof.trace import documents, schema
from commprof.trace.blocks import Block, BlockStream, pack_block
from commprof.trace.device_activity import DeviceActivity
from commprof.trace.documents import Communicator, Group
from commprof.trace.first_blocks import first_metadata_of, is_named_as_trace
from commprof.trace.first_blocks import read_first_metadata as read_first_metadata
from commprof.trace.packed import (
    PackedRecords,
    Packer,
    in_order,
    joined_once,
    without_twins,
)
from commprof.trace.packed_data import PackedData
from commprof.trace.recorded import Recorded
from commprof.trace.ring import RingContent, has_rings, read_rings, remove_rings
from commprof.trace.run.processes import State, state_of
from commprof.trace.schema import BlockType, Records
from commprof.trace.summary import Summary, read_newest

#: Value of ``capture`` in a trace that was made from a recording of torch.profiler.
TORCH_PROFILER = "torch.profiler"
#: Value of ``capture`` in a trace that NCCL's plugin wrote (``csrc/nccl_plugin``).
NCCL_PLUGIN = "nccl"


@dataclass(frozen=True)
class Trace:
    """The recording of one rank."""

    path: Path
    #: Machine, versions, rank and world size, clocks; see ``documents.py``.
    metadata: dict[str, Any]
    groups: dict[int, Group]
    #: Records of ``schema.RECORD_DTYPE``, sorted by ``timestamp_ns``.
    records: Records
    #: False if the process has not closed the trace: it died before, or still runs.
    complete: bool
    #: Number of records that were lost: no ring had room, or the write failed.
    dropped: int
    #: Sentences about parts that could not be read; empty if all could be read.
    problems: tuple[str, ...]
    #: Summary of always-on mode; None if that mode never ran. The summary also covers a later full
    #: mode.
    summary: Summary | None = None
    #: Frames of each stack, by the stack's id: innermost first, as "file:line function".
    stacks: dict[int, tuple[str, ...]] = field(default_factory=dict)
    communicators: dict[int, Communicator] = field(default_factory=dict)
    #: Kernels and copies that the device ran; None if none were recorded.
    device_activity: DeviceActivity | None = None
    #: Records of DDP's buckets and finalisations, derived from the recording of another profiler.
    #: Reports do not count these records.
    passes: Records | None = None
    #: Facts about the recording of another profiler; None if commprof recorded the rank.
    recorded: Recorded | None = None
    #: Tables that ``columns.once_per_trace`` keeps, by the function that makes the table.
    #: ``dataclasses.replace`` does not copy the tables.
    tables: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Makes the records read-only, because tables made from them are kept."""
        records = self.records.view()
        records.flags.writeable = False
        object.__setattr__(self, "records", records)

    @property
    def rank(self) -> int:
        """Global rank of the process that wrote the trace."""
        return int(self.metadata["rank"])

    @property
    def is_foreign(self) -> bool:
        """True if the trace was made from a recording of torch.profiler, not by commprof."""
        return str(self.metadata["capture"]) == TORCH_PROFILER

    @property
    def is_of_nccl(self) -> bool:
        """True if NCCL's plugin wrote the trace; the plugin sees no thread of the program."""
        return str(self.metadata["capture"]) == NCCL_PLUGIN

    @property
    def world_size(self) -> int:
        """Number of ranks in the job."""
        return int(self.metadata["world_size"])


@dataclass
class TraceContent:
    """Content of the blocks that were read so far."""

    metadata: dict[str, Any] | None = None
    groups: dict[int, Group] = field(default_factory=dict)
    batches: list[Records] = field(default_factory=list)
    dropped: int = 0
    complete: bool = False
    salvaged: bool = False
    problems: list[str] = field(default_factory=list)
    summary: Summary | None = None
    stacks: dict[int, tuple[str, ...]] = field(default_factory=dict)
    communicators: dict[int, Communicator] = field(default_factory=dict)
    #: Packs and holds the records; None if ``batches`` holds the records unpacked.
    packer: Packer | None = None

    def take_records(self, records: Records) -> None:
        """Keeps the records of a block."""
        if self.packer is None:
            self.batches.append(records)
        else:
            self.packer.add(records)

    @property
    def is_open(self) -> bool:
        """True if rings may hold further records: the trace was neither closed nor salvaged.

        See :func:`salvage`.
        """
        return not self.complete and not self.salvaged


@dataclass
class _File:
    #: Random number that the ring files of the recording hold too.
    session: int
    #: Offset after the last complete block.
    end: int
    metadata: dict[str, Any]
    content: TraceContent
    #: None if the trace was closed or salvaged (:func:`salvage`).
    rings: RingContent | None = None


def read_trace(path: Path, pack: PackedData | None = None) -> Trace:
    """Reads the trace at ``path``.

    If the process was killed or still runs, its newest records are read from its ring files. In
    always-on mode, only the number of dropped records is read from these files.

    Args:
        path: path of the file.
        pack: storage for packed records (:mod:`commprof.trace.packed`); None to return an array of
            records.

    Raises:
        TraceError: the file is not a trace, or its metadata cannot be used.
        OSError: the file cannot be opened.
    """
    file = _read_with_rings(path, None if pack is None else Packer(pack))
    content = file.content
    if file.rings is not None:
        content.batches.extend(file.rings.batches)
        content.dropped = file.rings.dropped
    records: Records | PackedRecords
    if content.packer is None:
        records = in_order(content.batches)
        records = records if content.complete else without_twins(records)
    else:
        records = content.packer.finish()
        records = records if content.complete else joined_once(records, content.batches)
    return Trace(
        path=path,
        metadata=file.metadata,
        groups=content.groups,
        records=cast("Records", records),
        complete=content.complete,
        dropped=content.dropped,
        problems=tuple(content.problems),
        summary=content.summary,
        stacks=content.stacks,
        communicators=content.communicators,
    )


def _read_with_rings(path: Path, packer: Packer | None = None) -> _File:
    """Reads a trace file and the rings of its process.

    Records may move from the rings to the file at any time. So the file is read again after the
    rings: a moved record may then be read twice, but it is not lost.
    """
    file = _read_file(path, packer)
    if file.content.is_open:
        rings = read_rings(file.metadata["ring_prefix"], file.session)
        file.content = TraceContent()  # frees the memory of the first reading
        file = _read_file(path, packer and Packer(packer.data))
        if file.content.is_open:
            summary = file.content.summary
            if summary is not None and summary.mode != "full":
                # In always-on mode, the rings hold only records of the last moment.
                rings.batches.clear()
            file.rings = rings
    return file


def _read_file(path: Path, packer: Packer | None) -> _File:
    content = TraceContent(packer=packer)
    file = None if packer is None else _read_small(path, packer, content)
    session, end = file or _read_in_blocks(path, content)
    if content.metadata is None:
        raise TraceError(
            f"{path}: no readable metadata block, so the trace cannot be used: the file is cut off "
            "or damaged near its beginning"
        )
    return _File(session, end, content.metadata, content)


def _read_in_blocks(path: Path, content: TraceContent) -> tuple[int, int]:
    """Returns the file's session, and the offset after its last complete block."""
    with open_regular(path) as file:
        stream = BlockStream(path, file)
        for block in stream:
            take_block(path, block, content)
    content.problems[:0] = stream.problems
    return stream.session, stream.end


def _read_small(path: Path, packer: Packer, content: TraceContent) -> tuple[int, int] | None:
    """Does what ``_read_in_blocks`` does, but faster.

    Returns None, and leaves ``content`` unchanged, if the file is large or damaged.
    """
    read = _small_reader()
    small = None if read is None else read(os.fspath(path))
    if small is None:
        return None
    session, end, blocks, parts, first_ns, last_ns = small
    for block_type, payload in blocks:
        take_block(path, Block(block_type, memoryview(payload)), content)
    packer.add_packed(parts, first_ns, last_ns)
    return session, end


@functools.cache
def _small_reader() -> Callable[[str], Any] | None:
    try:
        from commprof._reading import read_small_trace
    except ImportError:
        return None
    return read_small_trace


def take_block(path: Path, block: Block, content: TraceContent) -> None:
    """Adds a block to ``content``; skips blocks of unknown types."""
    take = _TAKE.get(block.type)
    try:
        if take is not None:
            take(block.payload, content)
    except ValueError as error:
        if content.metadata is None:
            raise TraceError(f"{path}: unusable metadata: {error}") from None
        content.problems.append(f"a block of type {block.type} is unusable: {error}")


def _take_records(payload: memoryview, content: TraceContent) -> None:
    content.take_records(_records(payload))


def _take_metadata(payload: memoryview, content: TraceContent) -> None:
    if content.metadata is None:
        content.metadata = documents.read_metadata(payload)
    else:
        content.metadata.update(documents.read_more_metadata(payload))


def _take_group(payload: memoryview, content: TraceContent) -> None:
    group = documents.read_group(payload)
    content.groups[group.id] = group


def _take_communicator(payload: memoryview, content: TraceContent) -> None:
    communicator = documents.read_communicator(payload)
    content.communicators[communicator.id] = communicator


def _take_stack(payload: memoryview, content: TraceContent) -> None:
    number, frames = documents.read_stack(payload)
    content.stacks[number] = frames


def _take_end(payload: memoryview, content: TraceContent) -> None:
    content.dropped = documents.read_dropped(payload, documents.END)
    content.complete = True


def _take_salvaged(payload: memoryview, content: TraceContent) -> None:
    content.dropped = documents.read_dropped(payload, documents.SALVAGED)
    content.salvaged = True


def _take_summary(payload: memoryview, content: TraceContent) -> None:
    take_newest_summary([payload], content)


#: Functions that add the payload of a block to the content, by block type. The keys are plain
#: numbers, because enum members are compared slowly.
_TAKE: dict[int, Callable[[memoryview, TraceContent], None]] = {
    int(BlockType.RECORDS): _take_records,
    int(BlockType.METADATA): _take_metadata,
    int(BlockType.GROUP): _take_group,
    int(BlockType.COMMUNICATOR): _take_communicator,
    int(BlockType.STACK): _take_stack,
    int(BlockType.END): _take_end,
    int(BlockType.SALVAGED): _take_salvaged,
    int(BlockType.SUMMARY): _take_summary,
}


def take_newest_summary(payloads: Sequence[memoryview], content: TraceContent) -> None:
    """Keeps the newest of some summary blocks, unless ``content`` has a newer summary."""
    try:
        content.summary = read_newest(payloads, content.summary) or content.summary
    except ValueError as error:
        content.problems.append(f"a block of type {BlockType.SUMMARY} is unusable: {error}")


def _records(payload: memoryview) -> Records:
    size = schema.RECORD_DTYPE.itemsize
    if len(payload) % size:
        raise ValueError(f"{len(payload)} bytes are not a whole number of records")
    return np.frombuffer(payload, dtype=schema.RECORD_DTYPE, count=len(payload) // size)


def salvage(path: Path) -> int:
    """Moves the records of a dead process from its ring files into its trace.

    Then removes the ring files. Records of always-on mode are not moved, because the trace has a
    summary. The process must be gone. A trace that was closed or salvaged before does not change.
    Several processes may salvage the same trace at the same time.

    Returns:
        The number of records moved.

    Raises:
        TraceError, OSError: the trace cannot be read or written; the ring files are then kept.
    """
    file = _read_with_rings(path)
    moved = 0
    if file.rings is not None:
        moved = sum(len(batch) for batch in file.rings.batches)
        counters = json.dumps({"records": moved, "dropped": file.rings.dropped}).encode()
        blocks = pack_block(BlockType.SALVAGED, counters)
        if moved:
            records = np.concatenate(file.rings.batches).tobytes()
            blocks = pack_block(BlockType.RECORDS, records) + blocks
        _append(path, file.end, blocks)
    remove_rings(file.metadata["ring_prefix"], file.session)
    return moved


def salvage_dead(directory: Path) -> None:
    """Salvages each trace in a run directory if the trace's process is gone.

    A trace is skipped if the state of its process is unknown, or if a file cannot be written.
    """
    paths = [
        folder / name
        for folder in (directory, *directory.glob("world_*"))
        for name in names_in(folder)
        if is_named_as_trace(name)
    ]
    for path, metadata in zip(paths, first_metadata_of(paths), strict=True):
        # A trace that cannot be read is skipped here; the report names its problem.
        if isinstance(metadata, dict) and metadata["ring_prefix"]:
            with suppress(OSError, TraceError):
                if has_rings(metadata["ring_prefix"]) and state_of(metadata) is State.GONE:
                    salvage(path)


def _append(path: Path, end: int, blocks: bytes) -> None:
    """Replaces all bytes from offset ``end`` on by ``blocks``.

    Another process may write the same blocks at the same time. So the file is cut after the write,
    not before.

    Raises:
        OSError: the blocks cannot be written, and no other process has written them.
    """
    with path.open("r+b", buffering=0) as file:
        file.seek(end)
        try:
            written = file.write(blocks)
            if written != len(blocks):
                raise OSError(f"{path}: only {written} of {len(blocks)} bytes could be written")
            file.truncate()
        except OSError:
            file.seek(end)
            if file.read(len(blocks)) != blocks:
                file.truncate(end)
                raise
