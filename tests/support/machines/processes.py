from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from commprof.trace.run.processes import stat_of

_END_S = 30


def gone(pid: int) -> bool:
    found = stat_of(pid)
    return found is None or found.ended


def await_gone(pids: Sequence[int]) -> list[int]:
    limit = time.monotonic() + _END_S
    while (left := [pid for pid in pids if not gone(pid)]) and time.monotonic() < limit:
        time.sleep(0.05)
    return left


def processes_of(run: Path) -> list[int]:
    name, found = os.fsencode(run), []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            told = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            if name in told and int(entry.name) != os.getpid() and not gone(int(entry.name)):
                found.append(int(entry.name))
    return found
