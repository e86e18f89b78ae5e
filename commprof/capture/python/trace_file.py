"""Appends blocks to a trace from Python: the rules of ``csrc/core/trace_writer.h``."""

from __future__ import annotations

import errno
import os
import threading

from commprof.trace import schema
from commprof.trace.blocks import pack_block
from commprof.trace.schema import BlockType


class PythonTraceFile:
    """One trace that is being written; any thread may call."""

    def __init__(self, path: str, session: int) -> None:
        """Creates or truncates ``path`` and writes the file header; raises OSError."""
        self._lock = threading.Lock()
        #: errno of the last failed write; 0 if none failed yet.
        self.write_errno = 0
        #: Size of the file.
        self.size_bytes = 0
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        header = (schema.TRACE_MAGIC, schema.TRACE_VERSION, schema.FILE_HEADER.size, session, 0)
        if not self._append(schema.FILE_HEADER.pack(*header)):
            self.close()
            raise OSError(self.write_errno, os.strerror(self.write_errno), path)

    def write_block(self, block_type: BlockType, payload: bytes) -> bool:
        """Appends one block; on failure the file ends where it did before."""
        with self._lock:
            return self._append(pack_block(block_type, payload))

    def close(self) -> None:
        """Closes the file; touches it in no way, because a forked child has it too."""
        os.close(self._fd)

    def _append(self, data: bytes) -> bool:
        left = memoryview(data)
        try:
            while left:
                written = os.pwrite(self._fd, left, self.size_bytes + len(data) - len(left))
                if written == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                left = left[written:]
        except OSError as error:
            self.write_errno = error.errno or errno.EIO
            os.ftruncate(self._fd, self.size_bytes)
            return False
        self.size_bytes += len(data)
        return True
