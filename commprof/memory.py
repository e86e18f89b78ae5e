"""Memory of the process."""

from __future__ import annotations

import contextlib
import ctypes


def return_free_memory() -> None:
    """Gives the memory that was freed back to the system, in some milliseconds.

    The C library keeps what lies between blocks that are still in use: tens of MB after the columns
    of many ranks were handled. Does nothing if the library is not glibc.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
