"""Finds and decodes files with Flight Recorder dumps. The file names give the ranks."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from commprof.errors import TraceError
from commprof.files import open_regular, read_bytes
from commprof.invocation import quoted
from commprof.recordings.containers import each_file, entries_in, is_file, is_packed, without_traces
from commprof.recordings.flight_recorder_pickle import read_plain_pickle

_RANK = re.compile(r"rank[_-]?(\d{1,7})(?!\d)", re.IGNORECASE)
_NUMBER = re.compile(
    r"(?:.*\D)?(\d{1,7})(?:\.(?:json|pickle|pkl|pt|bin|dump))?(?:\.gz)?", re.IGNORECASE
)
_LARGEST_BYTES = 1 << 30
_HEAD_BYTES = 1 << 16
_PICKLE, _GZIP = b"\x80", b"\x1f\x8b"
#: Value of zlib's ``wbits``: the gzip format with the largest window.
_GZIP_WINDOW = 31
_OF_TORCH_PROFILER = b'"traceEvents"'
#: A folder with this file is a run directory of commprof. Its sub-folders are not searched.
_OF_COMMPROF = "run.json"


class _FoundError(Exception):
    """Ends the search in :func:`is_flight_recorder`; ``args[0]`` is True if a dump was found."""


@dataclass(frozen=True)
class DumpFile:
    """A file or archive member that looks like a dump and has a rank in its name."""

    file: Path
    rank: int
    #: Content of an archive member; None for a file, which is read later.
    data: bytes | None = None

    def value(self) -> Any:
        """Reads and decodes the dump, which is pickle or JSON and may be compressed with gzip."""
        data = read_bytes(self.file, _LARGEST_BYTES) if self.data is None else self.data
        data = _unpacked(data, _LARGEST_BYTES)
        if data.startswith(_PICKLE):
            return read_plain_pickle(data)
        try:
            return json.loads(data)
        except RecursionError:
            raise ValueError("its JSON is nested too deeply") from None


def _unpacked(data: bytes, most_bytes: int) -> bytes:
    """Unpacks gzip data, up to ``most_bytes``. Returns other data unchanged."""
    if not data.startswith(_GZIP):
        return data
    try:
        return zlib.decompressobj(_GZIP_WINDOW).decompress(data, most_bytes)
    except zlib.error as error:
        raise ValueError(f"its compressed data is damaged ({error})") from None


def _packed_dumps(path: Path) -> tuple[list[DumpFile], list[str]]:
    dumps: list[DumpFile] = []

    def take(name: str, stream: BinaryIO) -> None:
        rank = _rank_in(Path(name).name)
        if rank is not None:
            dumps.append(DumpFile(Path(name), rank, stream.read(_LARGEST_BYTES)))

    problems = each_file(path, _is_dump, take)
    return sorted(dumps, key=lambda dump: dump.file), problems


def dump_files(path: Path) -> tuple[list[DumpFile], list[str]]:
    """Finds the dumps of a folder or archive.

    Also returns sentences about archive members that cannot be read.

    Raises:
        TraceError: several folders hold dumps of the same rank.
    """
    problems: list[str] = []
    if path.is_file() and is_packed(path):
        dumps, problems = _packed_dumps(path)
    else:
        dumps = list(_dumps_in(path))
    places = {(dump.rank, dump.file.parent) for dump in dumps}
    if len(places) > len({rank for rank, _ in places}):
        folders = sorted({dump.file.parent for dump in dumps})
        named = ", ".join(quoted(folder) for folder in folders[:10])
        raise TraceError(f"{quoted(path)} holds dumps in several folders; give only one: {named}")
    return dumps, problems


def is_flight_recorder(path: Path) -> bool:
    """True if a path is a Flight Recorder dump, or a folder or archive with at least one dump."""

    def first(head: bytes) -> bool:
        if _is_dump(head) or _OF_TORCH_PROFILER in head:
            raise _FoundError(_is_dump(head))
        return False

    try:
        if os.path.isfile(path):
            each_file(path, first, lambda name, stream: None)
            return False
    except _FoundError as found:
        return bool(found.args[0]) and (is_packed(path) or _rank_in(path.name) is not None)
    return any(True for _ in _dumps_in(path))


def _dumps_in(path: Path) -> Iterator[DumpFile]:
    """Yields the dumps at a path. If a folder has no dumps, its sub-folders are searched."""
    if not os.path.isdir(path):
        yield from _among([path])
        return
    inside = _entries_in(path)
    some = False
    for dump in _among(_of_other_tools(path, inside)):
        some = True
        yield dump
    if some or os.path.exists(path / _OF_COMMPROF):
        return
    for entry in inside:
        folder = path / entry.name
        if not is_file(entry) and os.path.isdir(folder):
            yield from _among(_of_other_tools(folder, _entries_in(folder)))


def _entries_in(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return entries_in(folder)
    except OSError:
        return []


def _of_other_tools(folder: Path, entries: Sequence[os.DirEntry[str]]) -> list[Path]:
    return [folder / entry.name for entry in without_traces(entries)]


def _among(files: Iterable[Path]) -> Iterator[DumpFile]:
    for file in files:
        rank = _rank_in(file.name)
        if rank is None or not os.path.isfile(file):
            continue
        try:
            with open_regular(file) as opened:
                head = _unpacked(opened.read(_HEAD_BYTES), _HEAD_BYTES)
        except (OSError, ValueError):
            continue
        if _is_dump(head):
            yield DumpFile(file, rank)


def _rank_in(name: str) -> int | None:
    """Returns the rank in a file's name: a number after "rank", or the last number."""
    named = _RANK.search(name) or _NUMBER.fullmatch(name)
    return int(named[1]) if named else None


def _is_dump(head: bytes) -> bool:
    """True for a dump's first bytes; False for a torch.profiler trace, which has similar keys."""
    if head.startswith(_PICKLE):
        return any(key in head for key in (b"pg_config", b"pg_status", b"collective_seq_id"))
    if _OF_TORCH_PROFILER in head:
        return False
    keys = any(key in head for key in (b'"pg_status"', b'"collective_seq_id"', b'"profiling_name"'))
    return head.lstrip().startswith(b"{") and keys
