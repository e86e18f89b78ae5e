"""Reads logs of NCCL Inspector, NVIDIA's profiler plugin that ships with NCCL.

Each process writes ``<host>-pid<PID>.log`` with a JSON object per completed operation. The C++
reader (``csrc/inspector``) reads every version of the format. Files may be joined.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from commprof.errors import CommprofError
from commprof.invocation import quoted
from commprof.recordings.containers import each_file, few
from commprof.text import counted, printable

if TYPE_CHECKING:
    from commprof._reading import InspectorLog, InspectorMember

_CHUNK_BYTES = 4 << 20
_HEAD_BYTES = 64 << 10
#: Every line of a log has one of these keys, except lines that trace NCCL's proxy thread.
_OPERATION = re.compile(rb'"(?:coll_perf|p2p_perf|dump_stats)"\s*:\s*\{')
_FIELDS = re.compile(rb'"(?:coll_sn|p2p_sn|coll_records)"')
_OWN_NAME = re.compile(r".+-pid\d+\.log")
#: Names of the plugin's files in a compressed format that commprof cannot read.
_PACKED_NAME = re.compile(r".+-pid\d+\.log\.(?:zst|xz|bz2|lz4|lzma)")
MOST_FILES = 200_000
#: A folder with this file is a run directory of commprof. It counts as a folder without logs.
_OF_COMMPROF = "run.json"
_MOST_NAMED = 3

Progress = Callable[[int, int], None]


class _FoundError(Exception):
    """Ends the search of files as soon as a log is found."""


@dataclass(frozen=True)
class InspectorLogs:
    """All logs of one job."""

    path: Path
    logs: tuple[InspectorLog, ...]
    empty: tuple[str, ...]
    #: Caveats, as sentences without a full stop.
    problems: tuple[str, ...]

    @property
    def members(self) -> Iterator[InspectorMember]:
        """The members of all logs; a member is one process in one of its communicators."""
        for log in self.logs:
            yield from log.members


def looks_like_log(head: bytes) -> bool:
    """True if a file with these first bytes is a log of NCCL Inspector."""
    return _OPERATION.search(head) is not None and _FIELDS.search(head) is not None


def is_inspector(path: Path) -> bool:
    """True if a file, folder or archive holds a log of NCCL Inspector.

    If the content does not show a log, the file names decide.
    """

    def wanted(head: bytes) -> bool:
        if looks_like_log(head):
            raise _FoundError
        return False

    try:
        if not path.exists() or (path / _OF_COMMPROF).exists():
            return False
        each_file(path, wanted, lambda name, stream: None)
        if path.is_dir():
            with os.scandir(path) as entries:
                names = [entry.name for entry in entries]
            return bool(names) and all(is_log_name(name) for name in names)
        return is_own_name(path.name) and not path.stat().st_size
    except _FoundError:
        return True
    except OSError:  # reported later, when the path is read
        return False


def read_logs(path: Path, progress: Progress | None = None) -> InspectorLogs:
    """Reads every log at ``path``: a file, a folder or an archive.

    Args:
        path: what to read.
        progress: called with the number of unpacked bytes and the total size of the files.

    Raises:
        CommprofError: there is no log with an operation, or the C++ module is missing.
    """
    logs, empty, problems = _read(path, progress or (lambda read_bytes, of_bytes: None))
    logs = [log for log in logs if log.lines]
    if not any(log.operations for log in logs):
        raise CommprofError(
            f"{quoted(path)} holds no operation: {_why_empty(logs, empty, problems)}"
        )
    damaged = [log for log in logs if log.damaged_lines]
    problems += [
        f"{printable(log.name)}: {counted(log.damaged_lines, 'line')} could not be read, the first "
        f"is line {log.first_damaged_line}"
        for log in damaged[:_MOST_NAMED]
    ]
    if len(damaged) > _MOST_NAMED:
        more = damaged[_MOST_NAMED:]
        problems.append(
            f"{counted(len(more), 'more file')}: {sum(log.damaged_lines for log in more)} lines "
            "could not be read"
        )
    return InspectorLogs(path, tuple(logs), tuple(empty), tuple(problems))


def _why_empty(logs: list[InspectorLog], empty: list[str], problems: list[str]) -> str:
    if logs and not empty:
        return "its lines describe only NCCL's proxy thread, or are damaged"
    if problems and not empty:
        return "; ".join(problems[:_MOST_NAMED])
    return (
        "unless NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS is set, NCCL Inspector writes at "
        "the end of a communicator, so a job that runs or was killed leaves empty files; by "
        "default NCCL Inspector also leaves out operations below 8192 bytes "
        "(NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES) and operations without times of the GPU "
        "(NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING)"
    )


def is_own_name(name: str) -> bool:
    """True if NCCL Inspector gives its logs such a name."""
    return _OWN_NAME.fullmatch(name) is not None


def is_log_name(name: str) -> bool:
    """True if a log of NCCL Inspector, compressed or not, has such a name."""
    return is_own_name(name.removesuffix(".gz")) or bool(packed_otherwise(name))


def packed_otherwise(name: str) -> str:
    """Returns why a log is left out if its name shows an unsupported compression; else empty."""
    if _PACKED_NAME.fullmatch(name) is None:
        return ""
    return "it is compressed, but not by gzip, and only gzip, zip and tar are unpacked"


def new_log(name: str) -> InspectorLog:
    """Makes an empty log of this name.

    Raises:
        CommprofError: the C++ module is missing.
    """
    try:
        from commprof._reading import InspectorLog
    except ImportError as error:
        raise CommprofError(
            f"reading logs of NCCL Inspector needs commprof's C++ modules ({error}); install "
            "commprof from a wheel, or where a C++20 compiler is available"
        ) from None
    return InspectorLog(name)


def _read(path: Path, progress: Progress) -> tuple[list[InspectorLog], list[str], list[str]]:
    """Returns the logs sorted by path, the names of empty logs, and the problems in reading."""
    try:
        files = sorted(_files(path)) if path.is_dir() else [path]
        sizes = {file: file.stat().st_size for file in files}
    except OSError as error:
        raise CommprofError(f"{quoted(path)}: {error.strerror or error}") from None
    total = sum(sizes.values())
    done = _Counter(progress, total)

    def read(file: Path) -> tuple[list[InspectorLog], list[str]]:
        logs: list[InspectorLog] = []
        below = file.relative_to(path).as_posix() if path.is_dir() else file.name

        def take(name: str, stream: BinaryIO) -> None:
            logs.append(new_log(below if name == file.name else f"{below}/{name}"))
            while chunk := stream.read(_CHUNK_BYTES):
                logs[-1].feed(chunk)
                done.add(len(chunk))
            logs[-1].finish()

        problems = each_file(file, looks_like_log, take)
        if not logs and not problems and (why := packed_otherwise(file.name)):
            problems.append(f"{printable(file.name)} is left out: {why}")
        return logs, problems

    empty = [file.name for file, size in sizes.items() if not size and is_own_name(file.name)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(read, [file for file in files if sizes[file]]))
    return (
        [log for logs, _ in results for log in logs],
        empty,
        few([problem for _, problems in results for problem in problems]),
    )


def _files(folder: Path) -> Iterator[Path]:
    for count, file in enumerate(folder.rglob("*")):
        if count >= MOST_FILES:
            raise CommprofError(
                f"{quoted(folder)} holds more than {MOST_FILES:,} files; name a folder of logs only"
            )
        if file.is_file():
            yield file


class _Counter:
    """Counts the bytes that several threads have read."""

    def __init__(self, progress: Progress, total_bytes: int) -> None:
        self._progress, self._total_bytes = progress, total_bytes
        self._read_bytes = 0
        self._lock = threading.Lock()

    def add(self, size_bytes: int) -> None:
        with self._lock:
            self._read_bytes += size_bytes
            self._progress(self._read_bytes, self._total_bytes)
