"""Where the rings of this process live."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

#: Less room than this in /dev/shm is left to others. A thread that records takes 1 MiB.
_SHM_RESERVE_BYTES = 64 << 20


def ring_prefix(directory: Path, rank: int) -> str:
    """How their paths begin: in memory if there is room, so no disk can stall them."""
    name = f"commprof-{os.getuid()}-{os.getpid()}-{secrets.token_hex(4)}-"
    shm = Path("/dev/shm")
    try:
        if os.access(shm, os.W_OK) and shutil.disk_usage(shm).free > _SHM_RESERVE_BYTES:
            return str(shm / name)
    except OSError:
        pass
    return str(directory / f".rank_{rank}-{name}")
