"""Stores a run's packed records, which do not all fit into memory if the run is long."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

#: At most this many bytes of packed records stay in memory.
_MOST_IN_MEMORY = 64 << 20


class _TemporaryFile:
    def __init__(self) -> None:
        import tempfile  # the import takes long, and few runs need a file

        self._file = tempfile.TemporaryFile(prefix="commprof-", buffering=0)  # noqa: SIM115
        self._size = 0

    def __del__(self) -> None:
        file = getattr(self, "_file", None)  # not set if no file could be made
        if file is not None:
            file.close()

    def read(self, size: int, offset: int) -> bytes:
        read = os.pread(self._file.fileno(), size, offset)
        if len(read) != size:
            raise OSError("the temporary file of packed records was cut off")
        return read

    def append(self, data: Bytes) -> InFile:
        if os.pwrite(self._file.fileno(), data.tobytes(), self._size) != len(data):
            raise OSError("the temporary directory is full")
        self._size += len(data)
        return InFile(self, self._size - len(data), len(data))


@dataclass(frozen=True)
class InFile:
    """Bytes in a temporary file; each slice is read when it is requested."""

    file: _TemporaryFile
    offset: int
    size: int

    def __len__(self) -> int:
        """Number of bytes."""
        return self.size

    def __getitem__(self, rows: slice) -> Bytes:
        """Reads some bytes."""
        begin, end, _ = rows.indices(self.size)
        return np.frombuffer(self.file.read(end - begin, self.offset + begin), dtype=np.uint8)


@dataclass
class PackedData:
    """Holds a run's packed records in memory, and beyond a limit in a temporary file.

    If the file cannot be written, all further records stay in memory.
    """

    most_in_memory: int = _MOST_IN_MEMORY
    _in_memory: int = field(default=0, init=False)
    _file: _TemporaryFile | None = field(default=None, init=False)
    _can_write: bool = field(default=True, init=False)

    def hold(self, data: Bytes) -> Bytes | InFile:
        """Stores ``data`` and returns the stored bytes, to be read in slices."""
        if self._in_memory + len(data) > self.most_in_memory and self._can_write:
            try:
                self._file = self._file or _TemporaryFile()
                return self._file.append(data)
            except OSError:
                self._can_write = False
        self._in_memory += len(data)
        return data
