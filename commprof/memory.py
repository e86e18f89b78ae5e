"""Control over when this process collects garbage and returns freed memory to the system."""

from __future__ import annotations

import atexit
import ctypes
import functools
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


@functools.cache
def end_without_collection() -> None:
    """Makes Python end this process without a last search for garbage in reference cycles.

    The search would visit every object that is left at the end, although the system frees the
    process's memory anyway. Functions of ``atexit`` still run, and files are still flushed. Must
    not be called in a process that runs a user's code.
    """
    atexit.register(gc.freeze)


def return_free_memory() -> None:
    """Makes the C library return freed memory to the system; takes some milliseconds.

    By itself, the library keeps freed memory that lies between blocks still in use: tens of MB
    after traces of many ranks were analysed. Does nothing if the library is not glibc.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
