"""Calls that a backend launches as one: ``dist.batch_isend_irecv``, ``dist._coalescing_manager``.

Each of them passes the dispatcher, but none has a Work that could be waited for: NCCL gives one for
all, at the end, and not through the dispatcher. So the group's methods say where they begin and
end. What they return and raise stays theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from commprof import _native
from commprof.capture.patches.replaced import Patches

#: Private to torch: they may go.
_START, _END = "_start_coalescing", "_end_coalescing"


class Coalescing:
    """Replaces the two methods of process groups."""

    def __init__(self) -> None:
        """Makes the list of patches; nothing is replaced yet."""
        self._patches = Patches()

    def install(self) -> None:
        """Begins; does nothing without the native module, or where torch has no such methods."""
        native, group = _native.native, dist.ProcessGroup
        start, end = getattr(group, _START, None), getattr(group, _END, None)
        if native is None or start is None or end is None:
            return
        self._patches.replace(group, _START, _begun(start, native))
        self._patches.replace(group, _END, _ended(end, native))

    def remove(self) -> None:
        """Puts everything back that was replaced."""
        self._patches.remove()


def _begun(original: Callable[..., Any], native: Any) -> Any:
    @wraps(original)
    def start(*args: Any) -> Any:
        result = original(*args)
        if torch.compiler.is_compiling():
            return result
        native.begin_coalescing()
        return result

    return start


def _ended(original: Callable[..., Any], native: Any) -> Any:
    @wraps(original)
    def end(*args: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args)
        try:
            work = original(*args)
        except BaseException:
            native.abandon_coalescing()
            raise
        return native.end_coalescing(work)

    return end
