"""Where the rings of this process live."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from commprof.trace.rings.ring import remove_orphans, write_owner

_MEMORY = Path("/dev/shm")


def ring_prefix() -> str:
    """How their paths begin: in memory, never on a disk or a network, which could stall them.

    Empty where there is no such memory: then they die with their process.
    """
    name = f"commprof-{os.getuid()}-{os.getpid()}-{secrets.token_hex(4)}-"
    in_memory = os.path.ismount(_MEMORY.resolve()) and os.access(_MEMORY, os.W_OK)
    return str(_MEMORY / name) if in_memory else ""


def own_rings(prefix: str, path: Path, session: int, metadata: dict[str, Any]) -> None:
    """Says in memory whose rings these are, and removes what jobs before left for nobody."""
    if metadata["capture"] != "native" or not prefix:
        return
    with suppress(OSError):
        write_owner(prefix, path, session, metadata)
    if metadata["local_rank"] == 0:
        with suppress(OSError):
            remove_orphans()
