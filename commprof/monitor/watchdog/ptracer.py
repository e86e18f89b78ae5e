"""Lets the watchdog read this process's stacks where the Yama security module restricts that."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_PR_SET_PTRACER = 0x59616D61


def allow_tracer(pid: int | None) -> None:
    """Allows the descendants of the process that the launcher named, and nobody else.

    pid: that process; None: the launcher named none.

    With ``kernel.yama.ptrace_scope`` 1 only ancestors may read a process, and the watchdog is the
    ranks' sibling. Elsewhere the call changes nothing.
    """
    if pid is not None:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)
