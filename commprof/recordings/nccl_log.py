"""Summarises NCCL's own log (``NCCL_DEBUG``), and finds the error of a failed nccl-tests run.

NCCL's log has no times at which collectives ran, so no command can report on the log.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final

from commprof.text import counted, plural, printable

#: A line of NCCL or RCCL: host, process and thread, device, then the level.
LOG_LINE: Final = re.compile(
    rb":\d+:\d+ \[\d+\][^\r\n]{0,160}? NCCL (?:INFO|WARN|TRACE|ABORT|VERSION)\b"
)
_LONGEST_LINE: Final = 1 << 16
#: Largest number of characters that a message quotes from a line of the log.
_MOST_CHARS: Final = 160
_MOST_SIZES: Final = 5
_VERSION: Final = re.compile(rb"\b[NR]CCL version (\d+(?:\.\d+)+\S{0,40})")
_COMPLETE: Final = re.compile(rb"comm (0x[0-9a-f]+) rank \d+ nranks (\d+) .*Init COMPLETE")
_WARNING: Final = re.compile(rb"NCCL WARN (.*)")
_CALL: Final = re.compile(rb"NCCL INFO (\w+): opCount (?:.*\[nranks=(\d+)\])?")
_FAILURE: Final = re.compile(rb"Test (?:NCCL|CUDA|HIP) failure .*|.*: Test failure .*")


def _lines(opened: BinaryIO, most_bytes: int) -> Iterator[bytes]:
    left = most_bytes
    while left > 0 and (line := opened.readline(_LONGEST_LINE)):
        left -= len(line)
        yield line.strip()


def _text(line: bytes) -> str:
    return printable(line.decode(errors="replace").strip()[:_MOST_CHARS])


def about_nccl_log(opened: BinaryIO, most_bytes: int) -> str:
    """Summarises a log: NCCL's version, communicators, calls and warnings.

    Args:
        opened: the log, positioned at its beginning.
        most_bytes: largest number of bytes to read.
    """
    version, warning, warnings = b"", b"", 0
    sizes, calls, called_in = Counter[int](), Counter[str](), set[int]()
    for line in _lines(opened, most_bytes):
        if b"CCL" not in line:
            continue
        if not version and (match := _VERSION.search(line)):
            version = match[1]
        if match := _COMPLETE.search(line):
            sizes[int(match[2])] += 1
        elif match := _CALL.search(line):
            calls[match[1].decode()] += 1
            called_in |= {int(match[2])} if match[2] else set()
        elif match := _WARNING.search(line):
            warning, warnings = warning or match[1], warnings + 1
    shows = [f"NCCL {_text(version)}"] if version else []
    if sizes:
        shows.append(f"{counted(sum(sizes.values()), 'initialisation')} of {_of_ranks(sizes)}")
    if calls:
        named = ", ".join(f"{count:,} {name}" for name, count in calls.most_common(4))
        where = f" in {_of_ranks(called_in)}" if called_in else ""
        count = sum(calls.values())
        shows.append(f"{count:,} {plural(count, 'call')} ({named}){where}")
    if warnings:
        shows.append(f'{counted(warnings, "warning")}, the first "{_text(warning)}"')
    what = "a log with lines of NCCL (NCCL_DEBUG), which has no times at which collectives ran"
    return f"{what}; it shows {', '.join(shows)}" if shows else what


def _of_ranks(sizes: Iterable[int]) -> str:
    return f"communicators of {counted(sorted(sizes)[-_MOST_SIZES:], 'rank')}"


def first_failure(opened: BinaryIO, most_bytes: int) -> str:
    """Returns the first line with which nccl-tests reports a failure; empty if there is none."""
    for line in _lines(opened, most_bytes):
        if b"failure" in line and (match := _FAILURE.search(line)):
            return _text(match[0])
    return ""
