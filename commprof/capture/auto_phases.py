"""Finds the phases of a step automatically.

- data: ``DataLoader.__next__``;
- forward: the call of a DDP model, of an FSDP1 model or of a module that ``fully_shard`` was
  applied to;
- backward: ``Tensor.backward`` or ``torch.autograd.backward``;
- optimizer: any ``torch.optim.Optimizer.step`` except its closure, or the ``GradScaler.step``
  around such a step.

The rest of a step, such as a loss that is computed after the model's call, belongs to no phase;
reports call it "other".
"""

from __future__ import annotations

import sys
import time
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
from torch.utils.data import default_collate
from torch.utils.data.dataloader import _BaseDataLoaderIter

from commprof.capture.optimizer_state import makes_state
from commprof.capture.patches.replaced import Patches, original_of, uncompiled
from commprof.capture.recorder import Marker
from commprof.capture.step_finder import StepFinder
from commprof.trace.schema import SAMPLES_UNKNOWN

#: True while ``torch.compile`` traces the caller. ``torch.compiler.is_compiling()`` is not used,
#: because it takes a thousand instructions.
_traced = torch.compiler.is_dynamo_compiling


class AutoPhases:
    """Replaces functions of torch, so that their calls are recorded as phases of a step."""

    def __init__(
        self,
        markers: Mapping[str, Marker],
        finder: StepFinder | None = None,
        called: Callable[[DistributedDataParallel], None] | None = None,
        updating: Callable[[Any], None] | None = None,
        loaded: Callable[[Any, Any, int], None] | None = None,
    ) -> None:
        """Patches nothing yet.

        Args:
            markers: the marker of each phase, by phase name.
            finder: is notified of updates and backward passes, which may end a step.
            called: is called with a DDP model after each of its forward passes.
            updating: is called with an optimizer before each of its updates, except compiled ones.
            loaded: is called after each request of a batch, with the DataLoader's iterator, the
                batch (None if there is none left), and the time of the request in ns.
        """
        self._markers = markers
        self._loaded = loaded
        # torch.compile must skip the Python recorder's markers; it never compiles native markers.
        for marker in markers.values():
            uncompiled(marker.begin, callees=True)
            uncompiled(marker.end, callees=True)
        self._finder = finder
        self._called = called if called is None else uncompiled(called, callees=True)
        self._updating = updating if updating is None else uncompiled(updating, callees=True)
        self._patches = Patches()
        self._installed = False
        #: Records the forward passes of FSDP's modules. The script may import FSDP at any time, so
        #: the caller must call ``sharded.poll()`` after each step.
        self.sharded = ShardedForward(markers["forward"], self._patches)

    def install(self) -> None:
        """Starts recording phases in this process."""
        self._installed = True
        self._patch_data(self._markers["data"])
        forward = self._markers["forward"]
        self._patch(DistributedDataParallel, "forward", forward, after=self._called)
        finder = self._finder
        whole = None if finder is None else lambda *_, **__: finder.whole
        self._patch(torch.autograd, "backward", self._markers["backward"], whole)
        scaling = None if finder is None else _scaling(finder)
        self._patch(torch.amp.GradScaler, "step", self._markers["optimizer"], scaling)
        self._hook_optimizers(self._markers["optimizer"])
        self.sharded.poll()

    def remove(self) -> None:
        """Restores the replaced functions; after torch.compile, some stay and call the original."""
        self._installed = False
        self._patches.remove()

    def _hook_optimizers(self, marker: Marker) -> None:
        finder = self._finder

        def before(
            optimizer: object, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Arguments | None:
            # No phase begins while a compiler traces the call: phases must not get into the graph.
            if _traced() or not self._installed or makes_state():
                return None
            marker.begin()
            if finder is not None:
                finder.before_update(optimizer)
            if self._updating is not None:
                self._updating(optimizer)
            return outside(marker, args, kwargs)

        def after(optimizer: object, *_: Any) -> None:
            if _traced() or not self._installed or makes_state():
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
        original, loaded = _BaseDataLoaderIter.__next__, self._loaded

        @wraps(original)
        def marked(iterator: Any) -> Any:
            if _traced():
                return original(iterator)
            batch, samples, begin_ns = None, 0, time.monotonic_ns()
            marker.begin()
            try:
                batch = original(iterator)
                samples = samples_read(iterator, batch)
                return batch
            finally:
                marker.end(samples)
                if loaded is not None:
                    loaded(iterator, batch, begin_ns)

        self._patches.replace(_BaseDataLoaderIter, "__next__", marked)

    def _patch(
        self,
        owner: Any,
        name: str,
        marker: Marker,
        around: Callable[..., AbstractContextManager[None]] | None = None,
        after: Callable[[Any], None] | None = None,
    ) -> None:
        """Makes each call of ``owner.name`` a phase, within the context ``around(*args)`` if given.

        ``after`` is called after the phase, with the object whose method was called.
        """
        original = original_of(getattr(owner, name))
        # Looked up only once, because each look-up in ``marked`` costs hundreds of instructions.
        begin, end = marker.begin, marker.end

        @wraps(original)
        def marked(*args: Any, **kwargs: Any) -> Any:
            if _traced() or not self._installed:
                return original(*args, **kwargs)
            begin()
            try:
                result = original(*args, **kwargs)
            finally:
                end()
            if after is not None:
                after(args[0])
            return result

        if around is None:
            self._patches.replace_for_compilers(owner, name, marked)
            return
        uncompiled(marked)

        @wraps(original)
        def surrounded(*args: Any, **kwargs: Any) -> Any:
            if _traced() or not self._installed:
                return original(*args, **kwargs)
            with around(*args, **kwargs):
                return marked(*args, **kwargs)

        self._patches.replace_for_compilers(owner, name, surrounded)


def _scaling(finder: StepFinder) -> Callable[..., AbstractContextManager[None]]:
    def around(_: Any, optimizer: Any = None, *__: Any, **___: Any) -> Any:
        return finder.scaling(optimizer)

    return around


#: Samples are not counted in batches with this many parts or more. A container is also a part.
_MOST_ITEMS = 256


def samples_read(iterator: Any, batch: Any) -> int:
    """Returns the number of samples in a DataLoader's batch; SAMPLES_UNKNOWN if not known.

    The number is the length of the batch's tensors in dimension 0, and is known only with automatic
    batching. If the script's own function collated the batch, this length must also fit the
    loader's ``batch_size``.
    """
    try:
        length = _common_length(batch)
        if length is None or not iterator._auto_collation:
            return SAMPLES_UNKNOWN
        if iterator._collate_fn is default_collate:
            return length
        sampler = iterator._index_sampler
        size = sampler.batch_size
        if length == size or (length < size and iterator._num_yielded == len(sampler)):
            return length
    except Exception:  # a user's batch or sampler may raise anything; training must go on
        return SAMPLES_UNKNOWN
    return SAMPLES_UNKNOWN


def _common_length(batch: Any) -> int | None:
    length: int | None = None
    items = [batch]
    for _ in range(_MOST_ITEMS):
        if not items:
            return length
        item = items.pop()
        if isinstance(item, torch.Tensor):
            if item.dim() == 0 or length not in (None, item.shape[0]):
                return None
            length = int(item.shape[0])
        elif isinstance(item, Mapping):
            items.extend(item.values())
        elif isinstance(item, list | tuple):
            items.extend(item)
    return None


Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def outside(marker: Marker, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
    """Wraps the closure of ``Optimizer.step``, so that the phase pauses while the closure runs.

    Args:
        marker: marker of the optimizer's phase.
        args: positional arguments; the first is the optimizer itself.
        kwargs: keyword arguments.

    Returns:
        The new arguments; None if there is no closure.
    """
    if len(args) > 1 and callable(args[1]):
        return (args[0], _leaving(marker, args[1]), *args[2:]), kwargs
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": _leaving(marker, kwargs["closure"])}
    return None


def _leaving(marker: Marker, closure: Callable[[], Any]) -> Callable[[], Any]:
    @wraps(closure)
    def left() -> Any:
        marker.end()
        try:
            return closure()
        finally:
            marker.begin()

    return left


#: FSDP's package, which this module does not import, because the import takes time.
FSDP = "torch.distributed.fsdp"
_CLASS, _FLAT_CLASS = "FSDPModule", "FullyShardedDataParallel"


class ShardedForward:
    """Records the forward passes of FSDP's modules once the script has imported FSDP."""

    def __init__(self, marker: Marker, patches: Patches) -> None:
        self._marker = marker
        self._patches = patches
        #: True until ``poll`` finds FSDP.
        self.pending = True
        #: True once FSDP1 has run a forward pass of training.
        self.is_flat = False

    def poll(self) -> None:
        """Starts recording if the script has imported FSDP; otherwise does nothing."""
        package = sys.modules.get(FSDP)
        owner = getattr(package, _CLASS, None)
        if owner is None:
            return
        self.pending = False
        self._patches.on_remove(self._forget)
        self._patches.replace(owner, "__call__", _marked(owner, self._marker))
        flat = getattr(package, _FLAT_CLASS, None)
        if flat is not None:
            self._patches.replace_for_compilers(flat, "forward", self._marked_flat(flat))

    def _forget(self) -> None:
        self.pending = True

    def _marked_flat(self, owner: type) -> Any:
        original = original_of(owner.forward)  # type: ignore[attr-defined]
        begin, end = self._marker.begin, self._marker.end

        @wraps(original)
        def marked(*args: Any, **kwargs: Any) -> Any:
            if _traced() or self.pending:
                return original(*args, **kwargs)
            self.is_flat = self.is_flat or torch.is_grad_enabled()
            begin()
            try:
                return original(*args, **kwargs)
            finally:
                end()

        return marked


def _marked(owner: type, marker: Marker) -> Any:
    """Returns the inherited ``__call__`` of ``owner`` with a phase around it."""

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        inherited = super(owner, module).__call__  # type: ignore[arg-type]
        if _traced():
            return inherited(*args, **kwargs)
        marker.begin()
        try:
            return inherited(*args, **kwargs)
        finally:
            marker.end()

    # At a graph break, the compiler skips torch.nn's own __call__. ``uncompiled`` makes the
    # compiler skip this __call__ in the same way.
    return uncompiled(call)
