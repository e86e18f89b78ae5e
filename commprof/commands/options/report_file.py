"""Files that a command writes for the user: never one in the place of another without --force."""

from __future__ import annotations

import os
from pathlib import Path

from commprof.errors import UsageError
from commprof.files import replace_file
from commprof.invocation import quoted


def writable_output(path: Path, force: bool) -> None:
    """Fails before the work, not after it.

    Raises:
        UsageError: the file is there already and ``force`` is not given, or its directory cannot
            be written to.
    """
    if _is_a_device(path):
        return
    if path.is_dir():
        raise UsageError(f"{quoted(path)} is a directory; name a file with -o FILE")
    if path.exists() and not force:
        raise UsageError(
            f"{quoted(path)} is there already; give --force to overwrite it, or -o FILE"
        )
    if not path.parent.is_dir():
        raise UsageError(f"{quoted(path.parent)} is no directory; make it, or name another -o FILE")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{quoted(path.parent)} cannot be written to; name another -o FILE")


def write_output(path: Path, content: str | bytes) -> None:
    """Writes all of it or leaves what was there.

    Raises:
        UsageError: the disk is full, or the directory cannot be written to.
    """
    data = content.encode() if isinstance(content, str) else content
    if _is_a_device(path):
        path.write_bytes(data)
        return
    try:
        replace_file(path.resolve(), data)  # a link stays one
    except OSError as error:
        raise UsageError(
            f"cannot write {quoted(path)}: {error.strerror}; name another -o FILE"
        ) from None


def _is_a_device(path: Path) -> bool:
    """Such as /dev/stdout, which is there and not to be replaced."""
    return path.exists() and not path.is_file() and not path.is_dir()
