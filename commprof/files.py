"""Files: read with a bound, whoever put them there, and written whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


def replace_file(path: Path, content: str | bytes) -> None:
    """Writes a file so that a reader finds the old content or the new one; see ``replacing``."""
    with replacing(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives the path of a file to write, which takes the place of ``path`` at the end.

    Raises:
        OSError: it cannot be written; the old content stays, and nothing is left beside it.
    """
    # Hosts may share the directory, and processes of two hosts their number.
    partial = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def available_memory_bytes() -> int:
    """What the machine could give to a process now; where it does not say, 8 GiB."""
    try:
        lines = _MEMINFO.read_text().splitlines()
        found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
        return int(found[0]) * 1024
    except (OSError, ValueError, IndexError):
        return 8 << 30
