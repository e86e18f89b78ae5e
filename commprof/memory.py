"""Memory of the process: what frees it, and when."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def uncollected() -> Iterator[None]:
    """Keeps the garbage collector off; afterwards it is on again if it was on before."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def return_free_memory() -> None:
    """Makes the C library return freed memory to the system; takes some milliseconds.

    By itself, the library keeps freed memory that lies between blocks still in use: tens of MB
    after the columns of many ranks were handled. Does nothing if the library is not glibc.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
