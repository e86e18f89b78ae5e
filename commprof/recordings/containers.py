"""Reads the files of a recording: a single file, a folder or an archive.

Compressed data is unpacked while it is read. Data that unpacks to many times its size is refused.
"""

from __future__ import annotations

import gzip
import io
import itertools
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from commprof.errors import CommprofError
from commprof.files import open_regular
from commprof.invocation import quoted
from commprof.trace.first_blocks import traces_among

#: Largest accepted ratio of unpacked to packed size. Traces have a ratio of 10 to 20.
_MOST_TIMES = 300
_ALWAYS_BYTES = 64 << 20
_MOST_FILES = 100_000
_MOST_PROBLEMS = 3
_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"
#: Value of zlib's ``wbits``: the gzip format with the largest window.
_GZIP_WINDOW = 31
_TAR_MAGIC_AT, _HEAD_BYTES = 257, 64 << 10
_ERRORS = (OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile, RuntimeError)


class Unpacked(io.RawIOBase):
    """A stream of unpacked bytes, limited to 64 MiB or, if larger, 300 times the packed size."""

    def __init__(self, stream: gzip.GzipFile | IO[bytes], packed_bytes: int) -> None:
        """Begins at the stream's current position."""
        self._stream: Any = stream
        self._most = max(_ALWAYS_BYTES, _MOST_TIMES * packed_bytes)
        self._given = 0

    def readable(self) -> bool:
        """Returns True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Reads like a raw file. Damaged data ends where the damage begins.

        Raises:
            OSError: the unpacked data is too large, or the data is damaged from the beginning.
        """
        try:
            data = self._stream.read1(len(buffer))  # read() would lose the data before the damage
        except _ERRORS as error:
            if self._given == 0:
                raise OSError(f"its compressed data is damaged or cut off ({error})") from None
            data = b""
        self._given += len(data)
        if self._given > self._most:
            raise OSError(f"it unpacks to more than {_MOST_TIMES} times its size")
        buffer[: len(data)] = data
        return len(data)


class GrowingGzip:
    """Unpacks a gzip file while another process writes the file.

    Data that the writer has not flushed yet cannot be unpacked.
    """

    def __init__(self) -> None:
        """Begins at the beginning of a file."""
        self._member = zlib.decompressobj(wbits=_GZIP_WINDOW)
        self._packed_bytes = self._unpacked_bytes = 0

    def unpack(self, data: bytes) -> bytes:
        """Unpacks the next bytes of the file.

        Raises:
            OSError: the data is damaged, or the unpacked data is too large. The rest of the file
                cannot be unpacked then.
        """
        self._packed_bytes += len(data)
        parts = []
        while data:
            if self._member.eof:
                data = data.lstrip(b"\0")  # padding between members
                if not data:
                    break
                self._member = zlib.decompressobj(wbits=_GZIP_WINDOW)
            try:
                parts.append(self._member.decompress(data))
            except zlib.error as error:
                raise OSError(f"its compressed data is damaged ({error})") from None
            data = self._member.unused_data
        unpacked = b"".join(parts)
        self._unpacked_bytes += len(unpacked)
        if self._unpacked_bytes > max(_ALWAYS_BYTES, _MOST_TIMES * self._packed_bytes):
            raise OSError(f"it unpacks to more than {_MOST_TIMES} times its size")
        return unpacked


#: Function that receives a file of a recording, as a name and a stream.
Take = Callable[[str, BinaryIO], None]


def each_file(path: Path, wanted: Callable[[bytes], bool], take: Take) -> list[str]:
    """Calls ``take`` with each file at ``path`` whose first bytes ``wanted`` accepts.

    Sub-folders of a folder are searched only if the folder itself has neither such a file nor a
    file that cannot be read. commprof's own traces in the folder itself are left out.

    Returns:
        Sentences about files that could not be read.
    """
    taken = 0

    def count(name: str, stream: BinaryIO) -> None:
        nonlocal taken
        taken += 1
        take(name, stream)

    if not path.is_dir():
        return _each_of([path], path.parent, wanted, count)
    try:
        inside = entries_in(path)
        here = (path / entry.name for entry in without_traces(inside) if is_file(entry))
        problems = _each_of(here, path, wanted, count)
        if taken == 0 and not problems:
            folders = [path / entry.name for entry in inside if entry.is_dir(follow_symlinks=False)]
            deeper = (entry.rglob("*") for entry in folders)
            files = (file for found in deeper for file in found if file.is_file())
            problems = _each_of(sorted(itertools.islice(files, _MOST_FILES)), path, wanted, count)
    except OSError as error:
        return [f"{quoted(path)}: {_said(error)}"]
    return problems


def entries_in(folder: Path) -> list[os.DirEntry[str]]:
    """Lists a folder, sorted by name.

    Raises:
        OSError: the folder cannot be read.
    """
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def is_file(entry: os.DirEntry[str]) -> bool:
    """True for a regular file or a link to a regular file."""
    if entry.is_symlink():
        return Path(entry.path).is_file()
    return entry.is_file(follow_symlinks=False)


def without_traces(entries: Sequence[os.DirEntry[str]]) -> list[os.DirEntry[str]]:
    """Returns the entries without commprof's own traces."""
    traces = traces_among([entry.path for entry in entries])
    return [entry for entry in entries if entry.path not in traces]


def few(problems: Sequence[str]) -> list[str]:
    """Shortens a long list of problems to the number of problems and the first few."""
    if len(problems) <= _MOST_PROBLEMS:
        return list(problems)
    first = "; ".join(problem.rstrip(".") for problem in problems[:_MOST_PROBLEMS])
    return [f"{len(problems):,} files are left out; the first {_MOST_PROBLEMS}: {first}"]


def is_packed(path: Path) -> bool:
    """True if a file begins like an archive or a compressed file."""
    with open_regular(path) as file:
        head = file.read(_TAR_MAGIC_AT + 5)
    return is_gzip(head) or is_archive(head)


def is_gzip(head: bytes) -> bool:
    """True if a file with these first bytes is compressed by gzip."""
    return head.startswith(_GZIP)


def is_archive(head: bytes) -> bool:
    """True if a file is a zip or tar archive. ``head`` needs the file's first 262 bytes."""
    return head.startswith(_ZIP) or _is_tar(head)


def _is_tar(head: bytes) -> bool:
    return head[_TAR_MAGIC_AT : _TAR_MAGIC_AT + 5] == b"ustar"


def _each_of(
    files: Iterable[Path], below: Path, wanted: Callable[[bytes], bool], take: Take
) -> list[str]:
    problems: list[str] = []
    for entry in files:
        try:
            with open_regular(entry) as file:
                name = entry.relative_to(below).as_posix()
                _unpack(name, file, os.fstat(file.fileno()).st_size, wanted, take)
        except _ERRORS as error:
            problems.append(f"{quoted(entry)}: {_said(error)}")
    return problems


def _unpack(
    name: str, file: BinaryIO, size: int, wanted: Callable[[bytes], bool], take: Take
) -> None:
    buffered = file if isinstance(file, io.BufferedReader) else io.BufferedReader(cast(Any, file))
    magic = buffered.peek(4)[:4]
    if magic[:2] == _GZIP:
        inner = Unpacked(gzip.GzipFile(fileobj=buffered), size)
        buffered = io.BufferedReader(inner, _HEAD_BYTES)
    elif magic == _ZIP:
        _unpack_zip(buffered, wanted, take)
        return
    head = buffered.peek(_HEAD_BYTES)
    if _is_tar(head):
        _unpack_tar(buffered, wanted, take)
    elif wanted(head):
        take(name, cast(BinaryIO, buffered))


def _unpack_zip(file: BinaryIO, wanted: Callable[[bytes], bool], take: Take) -> None:
    with zipfile.ZipFile(file) as archive:
        for member in sorted(archive.infolist()[:_MOST_FILES], key=lambda entry: entry.filename):
            if not member.is_dir():
                with archive.open(member) as inner:
                    stream = Unpacked(inner, member.compress_size)
                    _unpack(
                        member.filename, cast(BinaryIO, stream), member.compress_size, wanted, take
                    )


def _unpack_tar(file: BinaryIO, wanted: Callable[[bytes], bool], take: Take) -> None:
    with tarfile.open(fileobj=file, mode="r|") as archive:
        for number, member in enumerate(archive):
            if number >= _MOST_FILES:
                raise CommprofError(
                    f"the archive has more than {_MOST_FILES:,} files; make an archive that holds "
                    "the recording only"
                )
            inner = archive.extractfile(member) if member.isreg() else None
            if inner is not None:
                _unpack(member.name, cast(BinaryIO, inner), member.size, wanted, take)


def _said(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
