"""Finds the phases of a step without the user's help.

Data is ``DataLoader.__next__``, forward is the call of a DDP model, backward is
``Tensor.backward`` or ``torch.autograd.backward``, the optimizer is any
``torch.optim.Optimizer.step``. A loss computed after the model's call counts as other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data.dataloader import _BaseDataLoaderIter

from commprof.capture.recorder import Marker


class AutoPhases:
    """Installs and removes the markers. Nothing of it stays after :meth:`remove`."""

    def __init__(
        self, markers: Mapping[str, Marker], on_update: Callable[[object], None] | None = None
    ) -> None:
        """Takes the markers by phase name.

        Args:
            markers: one for each phase.
            on_update: told of each optimizer after its step.
        """
        self._markers = markers
        self.on_update = on_update
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Begins to mark phases in this process."""
        self._patch(_BaseDataLoaderIter, "__next__", self._markers["data"])
        self._patch(DistributedDataParallel, "forward", self._markers["forward"])
        self._patch(torch.autograd, "backward", self._markers["backward"])
        optimizer = self._markers["optimizer"]

        def before(*_: Any) -> None:
            optimizer.begin()

        def after(stepped: object, *_: Any) -> None:
            optimizer.end()
            if self.on_update is not None:
                self.on_update(stepped)

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
