"""Finds the phases of a step without the user's help.

Data is ``DataLoader.__next__``, forward is the call of a DDP model or of a module that
``fully_shard`` was applied to, backward is ``Tensor.backward`` or ``torch.autograd.backward``, the
optimizer is any ``torch.optim.Optimizer.step`` less its closure, or ``GradScaler.step`` around it.
A loss computed after the model's call counts as other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data.dataloader import _BaseDataLoaderIter

from commprof.capture.patches.replaced import Patches, original_of, uncompiled
from commprof.capture.phases.batch_size import samples_read
from commprof.capture.phases.closures import Arguments, outside
from commprof.capture.phases.sharded_forward import ShardedForward
from commprof.capture.phases.step_finder import StepFinder
from commprof.capture.recorder import Marker


class AutoPhases:
    """Installs and removes the markers. Nothing of it stays after :meth:`remove`."""

    def __init__(self, markers: Mapping[str, Marker], finder: StepFinder | None = None) -> None:
        """Takes the markers by phase name.

        Args:
            markers: one for each phase.
            finder: told of all that may end a step.
        """
        self._markers = markers
        for marker in markers.values():  # those of the recorder in Python
            uncompiled(marker.begin, callees=True)
            uncompiled(marker.end, callees=True)
        self._finder = finder
        self._patches = Patches()
        self._installed = False
        self._sharded = ShardedForward(markers["forward"], self._patches)

    def install(self) -> None:
        """Begins to mark phases in this process."""
        self._installed = True
        self._patch_data(self._markers["data"])
        self._patch(DistributedDataParallel, "forward", self._markers["forward"], None)
        finder = self._finder
        whole = None if finder is None else lambda *_, **__: finder.whole()
        self._patch(torch.autograd, "backward", self._markers["backward"], whole)
        scaling = None if finder is None else _scaling(finder)
        self._patch(torch.amp.GradScaler, "step", self._markers["optimizer"], scaling)
        self._hook_optimizers(self._markers["optimizer"])
        self.look()

    def look(self) -> None:
        """To be called after each step: what the script imported meanwhile is marked too."""
        if self._sharded.pending:
            self._sharded.look()

    def remove(self) -> None:
        """Puts everything back."""
        self._installed = False
        self._patches.remove()

    def _hook_optimizers(self, marker: Marker) -> None:
        finder = self._finder

        def before(
            optimizer: object, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Arguments | None:
            # Where this is traced: a phase is no part of a graph.
            if torch.compiler.is_compiling() or not self._installed:
                return None
            marker.begin()
            if finder is not None:
                finder.before_update(optimizer)
            return outside(marker, args, kwargs)

        def after(optimizer: object, *_: Any) -> None:
            if torch.compiler.is_compiling() or not self._installed:
                return
            marker.end()
            if finder is not None:
                finder.after_update(optimizer)

        for handle in (
            register_optimizer_step_pre_hook(uncompiled(before, callees=True)),
            register_optimizer_step_post_hook(uncompiled(after, callees=True)),
        ):
            self._patches.on_remove_for_compilers(handle.remove)

    def _patch_data(self, marker: Marker) -> None:
        original = _BaseDataLoaderIter.__next__

        @wraps(original)
        def marked(iterator: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(iterator)
            samples = 0
            marker.begin()
            try:
                batch = original(iterator)
                samples = samples_read(iterator, batch)
                return batch
            finally:
                marker.end(samples)

        self._patches.replace(_BaseDataLoaderIter, "__next__", marked)

    def _patch(
        self,
        owner: Any,
        name: str,
        marker: Marker,
        around: Callable[..., AbstractContextManager[None]] | None,
    ) -> None:
        """Runs ``owner.name`` inside ``marker``, and that inside ``around`` of its arguments."""
        original = original_of(getattr(owner, name))

        def timed(*args: Any, **kwargs: Any) -> Any:
            marker.begin()
            try:
                return original(*args, **kwargs)
            finally:
                marker.end()

        uncompiled(timed)

        @wraps(original)
        def marked(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self._installed:
                return original(*args, **kwargs)
            if around is not None:
                with around(*args, **kwargs):
                    return timed(*args, **kwargs)
            return timed(*args, **kwargs)

        self._patches.replace_for_compilers(owner, name, marked)


def _scaling(finder: StepFinder) -> Callable[..., AbstractContextManager[None]]:
    """Around ``GradScaler.step(self, optimizer, ...)``."""

    def around(_: Any, optimizer: Any = None, *__: Any, **___: Any) -> Any:
        return finder.scaling(optimizer)

    return around
