"""The forward phase under FSDP2: the call of a module that ``fully_shard`` was applied to.

That a layer is such a module as well, inside of the whole model, does not matter: of nested
markers the outermost counts, in backward too, where layers are called to compute them again.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from commprof.capture.patches.replaced import Patches
from commprof.capture.recorder import Marker

#: Not imported here, which most scripts would pay for in vain.
_PACKAGE = "torch.distributed.fsdp"
_CLASS = "FSDPModule"


class ShardedForward:
    """Marks these calls as soon as the script has imported what they need."""

    def __init__(self, marker: Marker, patches: Patches) -> None:
        """Takes the marker of the phase, and what undoes all of this."""
        self._marker = marker
        self._patches = patches
        #: Whether there is something to look for.
        self.pending = True

    def look(self) -> None:
        """Begins to mark, if FSDP2 is there. Where torch has it no more, nothing is marked."""
        owner = getattr(sys.modules.get(_PACKAGE), _CLASS, None)
        if owner is None:
            return
        self.pending = False
        self._patches.on_remove(self._forget)
        self._patches.replace(owner, "__call__", _marked(owner, self._marker))

    def _forget(self) -> None:
        self.pending = True


def _marked(owner: type, marker: Marker) -> Any:
    """``__call__`` for ``owner``, which stands before the module's own class in its order."""

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        inherited = super(owner, module).__call__  # type: ignore[arg-type]
        if torch.compiler.is_compiling():  # this is traced: a phase is no part of a graph
            return inherited(*args, **kwargs)
        marker.begin()
        try:
            return inherited(*args, **kwargs)
        finally:
            marker.end()

    return call
