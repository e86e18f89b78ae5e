"""Checks that output files can be written, and writes them atomically."""

from __future__ import annotations

import os
from pathlib import Path

from commprof.errors import UsageError
from commprof.files import is_a_device, replace_file
from commprof.invocation import quoted


def writable_file(path: Path | None, option: str = "--json") -> Path | None:
    """Checks that a file can be written, and creates it if it does not exist; returns its path.

    Raises UsageError if the file cannot be written. A device or pipe such as /dev/stdout is refused
    too, because the finished file would replace it.
    """
    if path is not None:
        if is_a_device(path):
            raise UsageError(
                f"cannot write {option} {quoted(path)}: it is a device or pipe; name another file"
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a"):
                pass
        except OSError as error:
            raise UsageError(
                f"cannot write {option} {quoted(path)}: {error.strerror}; name another file"
            ) from None
    return path


def writable_output(path: Path, force: bool) -> None:
    """Checks that the output file can be written, without creating it.

    Raises:
        UsageError: the file exists and ``force`` is False, or its directory cannot be written to.
    """
    if is_a_device(path):
        return
    if path.is_dir():
        raise UsageError(f"{quoted(path)} is a directory; name a file with -o FILE")
    if path.exists() and not force:
        raise UsageError(
            f"{quoted(path)} exists already; give --force to overwrite it, or name another -o FILE"
        )
    if not path.parent.is_dir():
        raise UsageError(
            f"{quoted(path.parent)} is not a directory; create it, or name another -o FILE"
        )
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{quoted(path.parent)} cannot be written to; name another file with -o")


def write_output(path: Path, content: str | bytes) -> None:
    """Writes the output; if writing fails, an older file stays unchanged.

    Raises:
        UsageError: the file cannot be written, for example because the disk is full.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        if is_a_device(path):
            path.write_bytes(data)
        else:
            replace_file(path.resolve(), data)  # a symbolic link stays a link
    except OSError as error:
        raise UsageError(
            f"cannot write {quoted(path)}: {error.strerror}; name another -o FILE"
        ) from None
