"""Reading files that anybody may have put there: regular ones only, and never without a bound."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

#: Of a JSON document that commprof wrote: a run of 1000 ranks has a few MB.
_MOST_JSON_BYTES = 256 << 20
_MEMINFO = Path("/proc/meminfo")


def open_regular(path: Path) -> BinaryIO:
    """Opens a file to read, as ``descriptor_of_regular`` does.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    return os.fdopen(descriptor_of_regular(path), "rb")


def descriptor_of_regular(path: Path) -> int:
    """Opens a file to read; never waits for the writer of a pipe, nor reads a device.

    The caller closes it.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return fd


def read_bytes(path: Path, most_bytes: int | None = None) -> bytes:
    """All of a regular file.

    Args:
        path: of the file.
        most_bytes: of its size; None: half of the memory that this machine has left.

    Raises:
        OSError: it cannot be opened, is no regular file, or is too large.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        limit = available_memory_bytes() // 2 if most_bytes is None else most_bytes
        if size > limit:
            said = f"its {size:,} bytes are more than the {limit:,} that are read here"
            raise OSError(errno.EFBIG, said, str(path))
        return file.read(size)


def read_json(path: Path) -> Any:
    """The value that a file holds; of any shape, for the caller to check.

    Raises:
        OSError: as for ``read_bytes``.
        ValueError: it holds no JSON, or JSON that is nested too deep.
    """
    try:
        return json.loads(read_bytes(path, _MOST_JSON_BYTES))
    except RecursionError:
        raise ValueError("JSON nested too deep") from None


def available_memory_bytes() -> int:
    """What the machine could give to a process now; where it does not say, 8 GiB."""
    try:
        lines = _MEMINFO.read_text().splitlines()
        found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
        return int(found[0]) * 1024
    except (OSError, ValueError, IndexError):
        return 8 << 30
