"""Memory of the host that is free to take."""

from __future__ import annotations

import os
from pathlib import Path


def available_bytes() -> int:
    """What the kernel would give without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
