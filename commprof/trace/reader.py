"""Reads one rank's trace file, complete or cut off.

Nothing in a file is trusted: lengths are checked against the file's size before memory is
allocated, blocks against their checksum, JSON against its shape. Parts that cannot be read are
reported in ``Trace.problems``; everything else is kept.

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

#: Value of ``capture`` in the metadata of a trace that was converted from a trace of
#: torch.profiler.
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
    #: False if the process died before it closed the trace.
    complete: bool
    #: Number of records for which no ring had room, or that could not be written.
    dropped: int
    #: Sentences about parts that could not be read; empty if all could be read.
    problems: tuple[str, ...]
    #: Summary of always-on mode; None if that mode never ran. It covers everything since the mode
    #: began, including ``records`` of a later full mode.
    summary: Summary | None = None
    #: Frames of each stack, by the stack's id: innermost first, as "file:line function".
    stacks: dict[int, tuple[str, ...]] = field(default_factory=dict)
    #: Communicators of NCCL by id, if NCCL's plugin recorded.
    communicators: dict[int, Communicator] = field(default_factory=dict)
    #: Kernels and copies that the device ran; None if none were recorded.
    device_activity: DeviceActivity | None = None
    #: DDP's buckets and finalisations that are implied by the recording of another profiler, as
    #: records of kinds ``bucket`` and ``finalize``. Reports count only the buckets and
    #: finalisations in ``records``.
    passes: Records | None = None
    #: Facts about the recording of another profiler; None if commprof recorded the rank.
    recorded: Recorded | None = None
    #: Tables of ``columns.once_per_trace``, by the function that made each.
    #: ``dataclasses.replace`` does not copy them.
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
    """Content of those blocks of a trace that were read so far."""

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
    #: Gets the records instead of ``batches``; None to keep them unpacked.
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
    """A trace file as it was read, and the records in the rings of its process."""

    #: Random number of the recording; its ring files hold it too.
    session: int
    #: Offset after the last complete block.
    end: int
    metadata: dict[str, Any]
    content: TraceContent
    #: None if the trace was closed or salvaged (:func:`salvage`): rings then hold nothing further.
    rings: RingContent | None = None


def read_trace(path: Path, pack: PackedData | None = None) -> Trace:
    """Reads the trace at ``path``.

    Args:
        path: path of the file.
        pack: stores the records, which are packed as they are read, see
            :mod:`commprof.trace.packed`; None to hold the records as an array.

    A trace without its closing block is incomplete: the process was killed, or still runs.
    Its newest records are then read from the ring files, if those still exist.

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
    """Reads a trace file and, unless it was closed or salvaged, the rings of its process.

    A running process moves records from the rings to the file, and so does :func:`salvage`, which
    then removes the rings. So the file is read again after the rings: a record that is moved
    meanwhile is read twice, and is not lost.
    """
    file = _read_file(path, packer)
    if file.content.is_open:
        rings = read_rings(file.metadata["ring_prefix"], file.session)
        file.content = TraceContent()  # frees the memory of the first reading
        file = _read_file(path, packer and Packer(packer.data))
        if file.content.is_open:
            summary = file.content.summary
            if summary is not None and summary.mode != "full":
                # Always-on mode keeps no records, and the rings hold only records of the last
                # moment.
                rings.batches.clear()
            file.rings = rings
    return file


def _read_file(path: Path, packer: Packer | None) -> _File:
    """Reads a trace file without the rings."""
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
    """Reads a file of any size block by block; returns its session and the end of its blocks."""
    with open_regular(path) as file:
        stream = BlockStream(path, file)
        for block in stream:
            take_block(path, block, content)
    content.problems[:0] = stream.problems
    return stream.session, stream.end


def _read_small(path: Path, packer: Packer, content: TraceContent) -> tuple[int, int] | None:
    """Does what ``_read_in_blocks`` does, in a tenth of the time.

    None if the file is large or a part of it is not intact; nothing is taken from it then.
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
    """Returns the function that reads small files; None if the C++ module is missing or too old."""
    try:
        from commprof._reading import read_small_trace
    except ImportError:
        return None
    return read_small_trace


def take_block(path: Path, block: Block, content: TraceContent) -> None:
    """Adds a block to ``content``; unknown types are skipped, so that the format can grow."""
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


#: By type of block: the function that adds a block's payload to the content. The keys are plain
#: numbers, because members of enums are compared slowly.
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
    """Takes the newest of some summary blocks, if it is newer than the summary taken before."""
    try:
        content.summary = read_newest(payloads, content.summary) or content.summary
    except ValueError as error:
        content.problems.append(f"a block of type {BlockType.SUMMARY} is unusable: {error}")


def _records(payload: memoryview) -> Records:
    """Returns a view of the payload; raises ValueError if it does not hold whole records."""
    size = schema.RECORD_DTYPE.itemsize
    if len(payload) % size:
        raise ValueError(f"{len(payload)} bytes are not a whole number of records")
    return np.frombuffer(payload, dtype=schema.RECORD_DTYPE, count=len(payload) // size)


def salvage(path: Path) -> int:
    """Moves a dead process's records from its ring files into its trace, and removes the files.

    Call it only when the process is gone. A trace that was closed or salvaged before does not
    change. Several processes may do this at the same time: each of them either finds the trace
    salvaged, or has read the rings before any process removed them, and then writes the same
    records.

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
    """Salvages each trace in a run directory if its process is gone and left ring files.

    Whether a process is gone can be known only on its machine, before a reboot, and in its PID
    namespace. A trace is skipped if this is not known, or if its files cannot be written.
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
    """Replaces all bytes after the last complete block, which ends at ``end``, by ``blocks``.

    The file is cut only after it was written: so if another process has already written the same
    blocks, readers find them at any time. If the blocks cannot be written, cuts the file off at
    ``end`` and raises OSError, unless another process has written them.
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
