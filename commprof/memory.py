"""Controls garbage collection and the return of freed memory to the system."""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def uncollected() -> Iterator[None]:
    """Turns the garbage collector off inside the context; restores its state afterwards."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@functools.cache
def end_without_collection() -> None:
    """Makes Python end this process without a last garbage collection, which would take time.

    Must not be called in a process that runs a user's code.
    """
    atexit.register(gc.freeze)


def return_free_memory() -> None:
    """Makes the C library return freed memory to the system; takes some milliseconds.

    After an analysis of many ranks, the library may hold tens of MB of freed memory. Does nothing
    if the library is not glibc.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
