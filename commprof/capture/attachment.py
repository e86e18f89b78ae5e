"""``commprof.attach(ddp)``: commprof's communication hook for one DDP model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from commprof import _native
from commprof.capture.python_hook import PythonBucketHook
from commprof.capture.recorder import recorder
from commprof.errors import CommprofError

#: A DDP communication hook: ``hook(state, bucket) -> Future[Tensor]``.
Hook = Callable[[Any, Any], Any]

#: Per model of this process that has an attachment: names of the hooks that ran inside it, in
#: order of first use. Stands in the trace's metadata.
_hooks: list[list[str]] = []


class Attachment:
    """The hook of one model. DDP keeps a hook for life; what runs inside it can change."""

    def __init__(self, ddp: DistributedDataParallel, bucket_hook: Any, hook: Hook | None) -> None:
        """See :func:`attach`."""
        self._ddp = ddp
        self._bucket_hook = bucket_hook
        self._names: list[str] = []
        _hooks.append(self._names)
        self._note(hook)
        # A hook that the user registers later goes inside ours.
        ddp.register_comm_hook = self._register_comm_hook

    def set_hook(self, hook: Hook | None, state: Any = None) -> None:
        """Replaces the hook inside; None is DDP's own mean all-reduce.

        Call it between steps and on every rank at the same step.
        """
        self._bucket_hook.set_hook(hook, state)
        self._note(hook)

    def _note(self, hook: Hook | None) -> None:
        """Puts the name of a hook that is new to this model into the trace's metadata."""
        name = _name(hook)
        if name not in self._names:
            self._names.append(name)
            hooks = [", then ".join(names) for names in _hooks]
            recorder().add_metadata(json.dumps({"hooks": hooks}))

    def remove(self) -> None:
        """Stops timing this model's buckets. The hook inside stays at work."""
        self._bucket_hook.recording = False

    def _register_comm_hook(self, state: object, hook: Hook) -> None:
        """Stands in for ``ddp.register_comm_hook``; like it, can be used once."""
        self._ddp._check_comm_hook(hook)
        if self._ddp._comm_hooks:
            raise RuntimeError("register_comm_hook can only be called once per model")
        self._ddp._comm_hooks.append((hook, state))
        self.set_hook(hook, state)


def attach(ddp: DistributedDataParallel, hook: Hook | None = None, state: Any = None) -> Attachment:
    """Times every gradient bucket of ``ddp``: ready, launched, completed.

    The collectives themselves are seen without this. Attach to know each bucket's index and
    signature, and as the place where a compressor runs.
    A hook costs one more pass over the gradients than DDP without one, because DDP then no
    longer fuses the division into its copy.

    Args:
        ddp: the model, before its first backward pass.
        hook: runs inside, as ``ddp.register_comm_hook(state, hook)`` would run it; None is a
            mean all-reduce, bit-identical to DDP without a hook.
        state: first argument of ``hook``.

    Raises:
        CommprofError: ``ddp`` is no DDP model, or has a communication hook already.
    """
    if not isinstance(ddp, DistributedDataParallel):
        raise CommprofError(
            f"attach() takes a DistributedDataParallel model, not {type(ddp).__name__}; "
            "other strategies need no attach(), their collectives are seen as they are"
        )
    if ddp._comm_hooks or "register_comm_hook" in vars(ddp):
        raise CommprofError(
            "this model already has a communication hook, and DDP takes one for life; call "
            "attach(ddp, hook=...) before registering it, or leave attach() out"
        )
    native = _native.native
    if native is not None:
        group = ddp.process_group
        bucket_hook: Any = native.BucketHook.attach(ddp.reducer, group, hook, state)
    else:
        bucket_hook = PythonBucketHook.attach(ddp, recorder(), hook, state)
    return Attachment(ddp, bucket_hook, hook)


def _name(hook: Hook | None) -> str:
    if hook is None:
        return "mean all-reduce"
    named = hook if hasattr(hook, "__qualname__") else type(hook)
    return f"{named.__module__}.{named.__qualname__}"
