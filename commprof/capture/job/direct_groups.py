"""Gives tokens to process groups that a script makes without ``init_process_group``.

Such a group has no name, so a report could not match its ranks. Instead, the ranks agree on a
random token through the group's own store.
"""

from __future__ import annotations

import functools
import secrets
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist

from commprof import _native
from commprof.capture.patches.replaced import Patches
from commprof.errors import CommprofError
from commprof.trace.blocks import read_blocks
from commprof.trace.schema import BlockType

_KEY = "commprof/group"
_TOKEN_BYTES = 8
_REGISTER = "_register_backend"
#: A closed trace that is larger than this is not searched for process groups.
_MOST_LOOKED_THROUGH_BYTES = 64 << 20


class DirectGroups:
    """Gives a token to each nameless group that gets a backend while capture runs."""

    def __init__(self) -> None:
        self._patches = Patches()

    def install(self) -> None:
        """Starts giving tokens.

        Does nothing without the native module, or if torch has no process groups.
        """
        owner = getattr(dist, "ProcessGroup", None)
        original = getattr(owner, _REGISTER, None)
        if _native.native is None or original is None:
            return

        @functools.wraps(original)
        def register(group: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(group, *args, **kwargs)
            note_group(group)
            return result

        self._patches.replace(owner, _REGISTER, register)

    def remove(self) -> None:
        """Stops giving tokens to new groups."""
        self._patches.remove()


def note_group(group: Any) -> None:
    """Gives a token to a group without a name, for the group's description in the trace.

    Does nothing for a group of one rank. Also does nothing for a group that ``init_process_group``
    or ``new_group`` makes, because these functions name the group.
    """
    if _native.native is None or group.size() < 2 or _made_by_c10d():
        return
    try:
        token = group.get_group_store().compare_set(_KEY, "", secrets.token_hex(_TOKEN_BYTES))
        _native.native.note_group_token(group, bytes(token).decode())
    except (AttributeError, RuntimeError, TypeError, ValueError, NotImplementedError):
        return  # a report then cannot match the group's ranks


def _made_by_c10d() -> bool:
    """True if a function of torch is making the group; the function names the group later."""
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_name in ("_new_process_group_helper", "init_process_group"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def say_if_without_group(path: Path) -> None:
    """Prints a message if this process's closed trace has no process group.

    Prints nothing if the trace is large. Without the native module, nothing is printed either,
    because capture then does not see groups that a script makes itself.
    """
    if _native.native is None or dist.is_initialized():
        return
    with suppress(OSError, ValueError, CommprofError):  # ValueError: stderr is closed
        if path.stat().st_size > _MOST_LOOKED_THROUGH_BYTES:
            return
        blocks = read_blocks(path, path.read_bytes()).blocks
        if not any(block.type == BlockType.GROUP for block in blocks):
            print(
                "commprof: no collective is recorded, because this process never completed "
                "init_process_group and made no other process group",
                file=sys.stderr,
            )
