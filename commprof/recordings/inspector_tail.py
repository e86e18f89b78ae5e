"""Follows logs of NCCL Inspector while the job writes the logs.

A log that is compressed with gzip can be read as far as the job has flushed it.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from commprof.errors import CommprofError
from commprof.files import descriptor_of_regular
from commprof.recordings.containers import GrowingGzip, is_archive, is_gzip
from commprof.recordings.inspector import (
    MOST_FILES,
    is_inspector,
    is_log_name,
    is_own_name,
    looks_like_log,
    new_log,
    packed_otherwise,
)
from commprof.text import printable

if TYPE_CHECKING:
    from commprof._reading import InspectorLog

_BYTES_PER_LOOK: Final = 64 << 20
#: Largest number of bytes that are read from one log at a time.
_BYTES_PER_LOG: Final = 4 << 20
#: Largest number of packed bytes that are read from one compressed log at a time.
_PACKED_BYTES_PER_LOG: Final = 64 << 10
_HEAD_BYTES: Final = 64 << 10
_MOST_PROBLEMS: Final = 20
_GZIP_SUFFIX: Final = ".gz"


@dataclass
class GrowingLog:
    """A log, and the state of its reading."""

    path: Path
    log: InspectorLog
    read_bytes: int = 0
    #: Time of the last new content, on the clock of :func:`time.monotonic`.
    grew_s: float = 0.0
    growths: int = 0
    #: Longest observed time between two writes; 0 before the second write.
    longest_gap_s: float = 0.0
    #: True if the last look read to the end of the log.
    is_read: bool = False
    #: None if the file is not compressed.
    unpacker: GrowingGzip | None = None
    #: True if the rest of the log cannot be read.
    is_given_up: bool = False
    #: Number of damaged lines at the last reading.
    damaged_lines: int = field(default=0, repr=False)


class InspectorTail:
    """Reads a folder of growing logs. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Reads nothing yet. The folder may have no logs yet."""
        self.folder = folder
        self.logs: dict[Path, GrowingLog] = {}
        self.empty: list[str] = []
        #: Sentences about content that could not be read.
        self.problems: list[str] = []
        self._others: set[Path] = set()

    @property
    def caught_up(self) -> bool:
        """True if the last look reached the end of every log."""
        return all(log.is_read for log in self.logs.values())

    def look(self) -> None:
        """Reads what was written since the last look, about ``_BYTES_PER_LOOK`` bytes at most."""
        left = _BYTES_PER_LOOK
        self._find()
        waiting = [log for log in self.logs.values() if not log.is_given_up]
        while waiting and left > 0:
            # The log with the fewest read bytes comes first, so that all logs advance equally.
            for log in sorted(waiting, key=lambda log: log.read_bytes):
                try:
                    left -= self._read(log, min(left, _BYTES_PER_LOG))
                except OSError as error:
                    self._complain(f"{printable(log.path.name)}: {error.strerror or error}")
                    log.is_read = True
            waiting = [log for log in waiting if not log.is_read]

    def _find(self) -> None:
        self.empty = []
        for count, file in enumerate(self.folder.rglob("*")):
            if count >= MOST_FILES:
                self._complain(
                    f"the folder holds more than {MOST_FILES:,} files; the others are not read"
                )
                return
            if file in self.logs or file in self._others:
                continue
            try:
                if not file.is_file():
                    continue
                if file.stat().st_size:
                    self._take(file)
                elif is_own_name(file.name):
                    self.empty.append(file.name)
            except OSError as error:
                self._others.add(file)
                self._complain(f"{printable(file.name)}: {error.strerror or error}")

    def _take(self, file: Path) -> None:
        head = _head_of(file)
        unpacker = GrowingGzip() if is_gzip(head) else None
        if unpacker is not None:
            plain = file.with_suffix("")
            if file.suffix == _GZIP_SUFFIX and (plain in self.logs or plain.exists()):
                self._leave_out(file, f"{printable(plain.name)} is followed")
                return
            is_whole = len(head) == _HEAD_BYTES
            head = GrowingGzip().unpack(head)
            if not is_whole and b"\n" not in head:
                return  # too few bytes to know whether the file is a log
        if is_archive(head):
            if is_inspector(file):
                self._leave_out(
                    file,
                    "an archive does not grow; unpack it into a folder of its own, or read it with "
                    "commprof report",
                )
            self._others.add(file)
        elif looks_like_log(head) or (unpacker is None and is_own_name(file.name)):
            self.logs[file] = GrowingLog(file, new_log(file.name), unpacker=unpacker)
        elif unpacker is None and (why := packed_otherwise(file.name)):
            self._leave_out(file, why)
        else:
            self._others.add(file)

    def _leave_out(self, file: Path, why: str) -> None:
        self._others.add(file)
        self._complain(f"{printable(file.name)} is left out: {why}")

    def _read(self, log: GrowingLog, most_bytes: int) -> int:
        """Reads at most ``most_bytes`` of a log; returns the number of bytes after unpacking."""
        if log.unpacker is not None:
            most_bytes = min(most_bytes, _PACKED_BYTES_PER_LOG)
        descriptor = descriptor_of_regular(log.path)
        try:
            about = os.fstat(descriptor)
            if about.st_size < log.read_bytes:
                self._complain(f"{printable(log.path.name)} became shorter; its rest is not read")
                log.is_given_up = log.is_read = True
                return 0
            data = os.pread(descriptor, max(0, most_bytes), log.read_bytes)
        finally:
            os.close(descriptor)
        log.is_read = log.read_bytes + len(data) >= about.st_size
        log.read_bytes += len(data)
        if data:
            data = self._unpacked(log, data)
        if data:
            now_s = time.monotonic()
            if log.growths == 0:  # the content may have been written long ago
                now_s -= max(0.0, time.time() - about.st_mtime)
            elif log.is_read:
                log.longest_gap_s = max(log.longest_gap_s, now_s - log.grew_s)
            log.grew_s = max(log.grew_s, now_s)
            log.growths += 1
            log.log.feed(data)
            self._count_damage(log)
        return len(data)

    def _unpacked(self, log: GrowingLog, data: bytes) -> bytes:
        if log.unpacker is None:
            return data
        try:
            return log.unpacker.unpack(data)
        except OSError as error:
            self._complain(f"{printable(log.path.name)}: {error}; its rest is not read")
            log.is_given_up = log.is_read = True
            return b""

    def _count_damage(self, log: GrowingLog) -> None:
        if log.log.damaged_lines > log.damaged_lines:
            if log.damaged_lines == 0:
                self._complain(
                    f"{printable(log.path.name)}: some lines could not be read, the first is line "
                    f"{log.log.first_damaged_line}"
                )
            log.damaged_lines = log.log.damaged_lines

    def _complain(self, problem: str) -> None:
        if problem not in self.problems and len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(problem)


def _head_of(file: Path) -> bytes:
    descriptor = descriptor_of_regular(file)
    try:
        return os.pread(descriptor, _HEAD_BYTES, 0)
    finally:
        os.close(descriptor)


def holds_logs(folder: Path) -> bool:
    """True if a folder holds logs of NCCL Inspector. The logs may be empty."""
    try:
        with os.scandir(folder) as entries:
            own = any(is_log_name(entry.name) for entry in entries)
        return own or is_inspector(folder)
    except (OSError, CommprofError):
        return False
