"""Reads results of nccl-tests and rccl-tests: the printed text and the result files.

Older versions do not print the name of the operation. commprof then looks for the name in the
file's own name. ``docs/recordings.md`` lists the versions whose source code was checked.
"""

from __future__ import annotations

from pathlib import Path

from commprof.errors import UsageError
from commprof.files import open_regular, read_bytes
from commprof.invocation import quoted
from commprof.recordings.nccl_log import first_failure
from commprof.recordings.nccl_tests_files import is_json, is_records, read_json, read_records
from commprof.recordings.nccl_tests_rows import NcclTestsLog, NcclTestsRow
from commprof.recordings.nccl_tests_text import CONTAINER_LOG, has_table, read_text
from commprof.text import printable

__all__ = ["NcclTestsLog", "NcclTestsRow", "is_nccl_tests", "read_nccl_tests"]

#: Largest JSON or CSV file that is read, in bytes. A text may have any size.
_LARGEST_BYTES = 1 << 28
_HEAD_BYTES = 1 << 16


def is_nccl_tests(path: Path) -> bool:
    """True if a file is a result of nccl-tests or rccl-tests."""
    try:
        head = _head(path)
        if is_json(head) or is_records(head):
            return True
        return not _is_json_file(head) and has_table(path)
    except OSError:
        return False


def read_nccl_tests(path: Path) -> tuple[NcclTestsLog, ...]:
    """Reads a file of results; returns one log per operation and set of ranks.

    Raises:
        UsageError: the file cannot be read, lacks the operation, the ranks or any result, or
            contradicts itself.
    """
    try:
        logs = _logs(path)
    except (OSError, ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
        what = printable(str(error).splitlines()[0] if str(error) else "damaged")
        raise UsageError(f"{quoted(path)} is not a usable result of nccl-tests: {what}") from None
    if not any(log.rows for log in logs):
        failure = _failure(path)
        why = f': the run failed ("{failure}")' if failure else ""
        raise UsageError(f"{quoted(path)} has no rows of nccl-tests with a size and a time{why}")
    return logs


def _logs(path: Path) -> tuple[NcclTestsLog, ...]:
    head = _head(path)
    if is_records(head):
        return read_records(read_bytes(path, _LARGEST_BYTES).decode(errors="replace"), path.stem)
    if _is_json_file(head):
        text = read_bytes(path, _LARGEST_BYTES).decode(errors="replace")
        return (read_json(text, path.stem),)
    return read_text(path)


def _is_json_file(head: bytes) -> bool:
    return head.lstrip().startswith(b"{") and not head.startswith(CONTAINER_LOG)


def _failure(path: Path) -> str:
    with open_regular(path) as opened:
        return first_failure(opened, _LARGEST_BYTES)


def _head(path: Path) -> bytes:
    with open_regular(path) as opened:
        return opened.read(_HEAD_BYTES)
