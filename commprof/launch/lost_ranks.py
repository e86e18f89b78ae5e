"""Ranks that torch's launcher started and lost: a signal came before it had written them down."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

#: Torch's launcher sets it for ranks; nothing else that this process starts has it.
_OF_RANKS = b"TORCHELASTIC_RUN_ID="


def kill_lost_ranks() -> None:
    """End every rank that is a child of this process, with what it started itself.

    For when torch's launcher has given up: those that it knows of are gone by then. Does nothing
    where the kernel does not list children (``CONFIG_PROC_CHILDREN``).
    """
    for pid in _children():
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it is gone
        if any(variable.startswith(_OF_RANKS) for variable in variables):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # torch gives each a session of its own


def _children() -> list[int]:
    found: list[int] = []
    for task in Path("/proc/self/task").glob("*"):
        with suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found
