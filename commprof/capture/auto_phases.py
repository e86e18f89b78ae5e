"""Finds the phases of a step without the user's help.

Data is ``DataLoader.__next__``, backward is ``Tensor.backward`` or
``torch.autograd.backward``, the optimizer is any ``torch.optim.Optimizer.step``. Forward is
an attached DDP model's call (see ``attach``); a loss computed after it counts as other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data.dataloader import _BaseDataLoaderIter

from commprof.capture.recorder import Marker


class AutoPhases:
    """Installs and removes the markers. Nothing of it stays after :meth:`remove`."""

    def __init__(self, markers: Mapping[str, Marker]) -> None:
        """Takes the markers by phase name."""
        self._markers = markers
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Begins to mark phases in this process."""
        self._patch(_BaseDataLoaderIter, "__next__", self._markers["data"])
        self._patch(torch.autograd, "backward", self._markers["backward"])
        optimizer = self._markers["optimizer"]

        def before(*_: Any) -> None:
            optimizer.begin()

        def after(*_: Any) -> None:
            optimizer.end()

        for handle in (
            register_optimizer_step_pre_hook(before),
            register_optimizer_step_post_hook(after),
        ):
            self._undo.append(handle.remove)

    def remove(self) -> None:
        """Puts everything back."""
        while self._undo:
            self._undo.pop()()

    def _patch(self, owner: Any, name: str, marker: Marker) -> None:
        """Runs ``owner.name`` inside ``marker``, unless somebody replaced it meanwhile."""
        original = getattr(owner, name)

        @wraps(original)
        def marked(*args: Any, **kwargs: Any) -> Any:
            marker.begin()
            try:
                return original(*args, **kwargs)
            finally:
                marker.end()

        def undo() -> None:
            if getattr(owner, name) is marked:
                setattr(owner, name, original)

        setattr(owner, name, marked)
        self._undo.append(undo)
