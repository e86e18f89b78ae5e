"""``commprof.attach(ddp)``: gradient buckets of one DDP model, and what runs in their place.

A communication hook makes DDP divide its gradients in a pass of their own, which takes 1 to 3 % of
a step. So commprof's is registered when something is to run inside it, and not to observe.
"""

from __future__ import annotations

import functools
import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from commprof import _native
from commprof.capture.python_hook import PythonBucketHook
from commprof.capture.recorder import recorder
from commprof.capture.settings import RankSettings, check_kernels
from commprof.compressors import Compressor
from commprof.compressors.groups import Groups
from commprof.compressors.running import Running
from commprof.errors import CommprofError

#: A DDP communication hook: ``hook(state, bucket) -> Future[Tensor]``.
Hook = Callable[[Any, Any], Any]

#: Per model of this process that has an attachment: names of the hooks that ran inside it, in
#: order of first use. Stands in the trace's metadata.
_hooks: list[list[str]] = []
#: Where a model holds its attachment.
_HELD = "_commprof_attachment"


class Attachment:
    """commprof's part in one DDP model. DDP keeps a hook for life; what runs inside can change."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        """See :func:`attach`."""
        self._ddp = ddp
        #: Of BucketHook or ObservedBuckets, or their like in Python.
        self._buckets = _observed(ddp)
        self._is_hooked = self._buckets is None
        if self._is_hooked:
            self._buckets = bucket_hook_of(ddp)
        self._names: list[str] = []
        self._compressor: Compressor | None = None
        self._running: Running | None = None
        self._mean = True  # what is inside is DDP's own mean all-reduce
        self._divisor = 0  # ranks that it divides by; 0: all
        self._groups = Groups(ddp)  # of native compressors of this model, one after the other
        _hooks.append(self._names)
        # A hook that the user registers later goes inside ours.
        ddp.__dict__[_HELD] = _Held(self)
        _redirect_register_comm_hook()
        _follow_joins()

    @property
    def compressor(self) -> Compressor | None:
        """The compressor inside the hook, if there is one."""
        return self._compressor

    @property
    def ddp(self) -> DistributedDataParallel:
        """The DDP model."""
        return self._ddp

    @property
    def is_native(self) -> bool:
        """True if compressors run natively here; else fewer run, as torch operations."""
        return self._groups.native

    @property
    def bucket_hook(self) -> Any:
        """commprof's hook in the model's reducer; registered at the first access.

        Asked for first, like all that needs it, between steps and on every rank at the same one.
        """
        if not self._is_hooked:
            hook = bucket_hook_of(self._ddp)
            hook.recording = self._buckets.recording
            self._buckets, self._is_hooked = hook, True
        return self._buckets

    @property
    def has_own_hook(self) -> bool:
        """True if the script registered a hook of its own, which runs inside."""
        return bool(self._ddp._comm_hooks)

    def use_bucket_hook(self, bucket_hook: Any) -> None:
        """Switches to the hook of another reducer, made by ``bucket_hook_of``.

        Call it between steps and without a compressor inside; what is inside the new one stays.
        """
        assert self._compressor is None
        bucket_hook.recording = self.bucket_hook.recording
        self._buckets = bucket_hook

    def set_hook(self, hook: Hook | Compressor | None, state: Any = None) -> None:
        """Replaces the hook inside; None is DDP's own mean all-reduce.

        Call it between steps and on every rank at the same step. A compressor that is replaced
        loses its residuals; ``state_dict()`` before and ``load_state_dict()`` after keep them.

        Raises:
            CommprofError: the ranks do not agree on the compressor, or it works in another model;
                or the state that it was given does not fit, and then none is at work afterwards.
        """
        if isinstance(hook, Compressor):
            self._compress(hook)
        elif hook is not None or self._is_hooked:
            self.bucket_hook.set_hook(hook, state)
            self._release()
        self._mean, self._divisor = hook is None, 0
        self._note(hook)

    def _compress(self, compressor: Compressor) -> None:
        """Makes its engine, which is a collective call, and puts it inside."""
        if compressor is self._compressor:
            return
        compressor.require_free()
        running = Running(self._ddp, compressor, self._groups, self._running)
        try:
            compressor.bind(running)
        except Exception:
            running.stop()
            self._release()
            raise
        if running.is_native:
            self.bucket_hook.set_compressor(running.engine)
        else:
            self.bucket_hook.set_hook(running.engine, None)
        self._release()
        self._compressor, self._running = compressor, running

    def _release(self) -> None:
        """Ends the compressor that was inside."""
        if self._compressor is not None and self._running is not None:
            self._compressor.unbind()
            self._running.stop()
        self._compressor = self._running = None

    def _note(self, hook: Hook | Compressor | None) -> None:
        """Puts the name of a hook that is new to this model into the trace's metadata."""
        name = _name(hook)
        if name not in self._names:
            self._names.append(name)
            hooks = [", then ".join(names) for names in _hooks]
            recorder().add_metadata(json.dumps({"hooks": hooks}))

    def remove(self) -> None:
        """Stops timing this model's buckets. The hook inside stays at work."""
        self._buckets.recording = False

    def _divide_by(self, ranks: int) -> None:
        """Lets the mean be over so many ranks, 0 for all, as DDP's is while others have joined."""
        if not self._mean:
            if ranks:
                _warn_of_join()
            return
        if ranks != self._divisor and self._is_hooked:
            mean = _mean_over(ranks, self._ddp.process_group) if ranks else None
            self.bucket_hook.set_hook(mean, None)
            self._divisor = ranks

    def _register_comm_hook(self, state: object, hook: Hook) -> None:
        """Stands in for ``ddp.register_comm_hook``; like it, can be used once."""
        self._ddp._check_comm_hook(hook)
        if self._ddp._comm_hooks:
            raise RuntimeError("register_comm_hook can only be called once per model")
        self._ddp._comm_hooks.append((hook, state))
        if self._compressor is not None:
            print(
                f"commprof: the script registers a communication hook of its own; the compressor "
                f"{self._compressor.label} leaves this model to it",
                file=sys.stderr,
            )
        self.set_hook(hook, state)


class _Held:
    """An attachment in its model's own attributes: it lives as long as the model.

    A copy of the model, and what is loaded of a pickled one, has no hook, and None in this place:
    where it is loaded there may be no commprof.
    """

    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


@functools.cache
def _redirect_register_comm_hook() -> None:
    """Has models that have an attachment ask it, from now on, when a hook is registered."""
    original = DistributedDataParallel.register_comm_hook

    @functools.wraps(original)
    def register_comm_hook(self: DistributedDataParallel, state: object, hook: Hook) -> None:
        held = self.__dict__.get(_HELD)
        if held is None:
            original(self, state, hook)
        else:
            held.attachment._register_comm_hook(state, hook)

    DistributedDataParallel.register_comm_hook = register_comm_hook


@functools.cache
def _follow_joins() -> None:
    """Has models that have an attachment divide, from now on, as ``ddp.join()`` was told to.

    With ``divide_by_initial_world_size=False`` DDP divides by the ranks that have not joined, which
    it counts with an all-reduce in each forward pass; it tells no hook.
    """
    original = Join.notify_join_context

    @functools.wraps(original)
    def notify_join_context(joinable: Any) -> Any:
        work = original(joinable)
        held = getattr(joinable, _HELD, None)
        if held is not None:
            ranks = 0
            if work is not None and not joinable._divide_by_initial_world_size:
                work.wait()
                ranks = int(work.result()[0].item())
            held.attachment._divide_by(ranks)
        return work

    Join.notify_join_context = staticmethod(notify_join_context)


def _mean_over(ranks: int, group: Any) -> Hook:
    def hook(_: Any, bucket: Any) -> Any:
        # By the reciprocal, as DDP does: to the bit.
        work = group.allreduce([bucket.buffer().mul_(1.0 / ranks)])
        return work.get_future().then(lambda done: done.value()[0])

    return hook


@functools.cache
def _warn_of_join() -> None:
    warnings.warn(
        "commprof: join(divide_by_initial_world_size=False) has no effect on a model with a "
        "communication hook or compressor inside, as without commprof: means are over all ranks",
        stacklevel=2,
    )


def attach(
    ddp: DistributedDataParallel, hook: Hook | Compressor | None = None, state: Any = None
) -> Attachment:
    """Times every gradient bucket of ``ddp``: ready, launched, completed.

    The collectives themselves are seen without this. Attach to know each bucket's index and
    signature, and as the place where a compressor runs.
    Without a hook inside, and with the native module, none is registered: DDP works as it does
    alone. With one DDP no longer divides while it copies, which takes one more pass over the
    gradients.

    Args:
        ddp: the model, before its first backward pass.
        hook: runs inside, as ``ddp.register_comm_hook(state, hook)`` would run it; or one of
            ``commprof.compressors``, and then all ranks must call this together; None is DDP's
            own mean all-reduce.
        state: first argument of ``hook``.

    Raises:
        CommprofError: ``ddp`` is no DDP model, or has a communication hook already; or the ranks
            do not agree on the compressor; or a ``COMMPROF_`` variable has a value that means
            nothing.
    """
    if not isinstance(ddp, DistributedDataParallel):
        raise CommprofError(
            f"attach() takes a DistributedDataParallel model, not {type(ddp).__name__}; "
            "other strategies need no attach(), their collectives are seen as they are"
        )
    if ddp._comm_hooks or ddp.__dict__.get(_HELD) is not None:
        raise CommprofError(
            "this model already has a communication hook, and DDP takes one for life; call "
            "attach(ddp, hook=...) before registering it, or leave attach() out"
        )
    RankSettings.from_environment()
    check_kernels()
    attachment = Attachment(ddp)
    attachment.set_hook(hook, state)
    return attachment


def _observed(ddp: DistributedDataParallel) -> Any:
    """What tells the model's buckets without a hook; None where there is nothing."""
    native = _native.native
    # An option of torch 2.15: buckets are let go of before the end of a pass, where they are read.
    gone = getattr(ddp, "lazy_bucket_allocation", False)
    return None if native is None or gone else native.ObservedBuckets(ddp.reducer)


def bucket_hook_of(ddp: DistributedDataParallel) -> Any:
    """Registers commprof's hook with the reducer that the model has now, which takes one."""
    native = _native.native
    if native is not None:
        group = ddp.process_group
        return native.BucketHook.attach(ddp.reducer, group, None, None)
    return PythonBucketHook.attach(ddp, recorder(), None, None)


def _name(hook: Hook | Compressor | None) -> str:
    if hook is None:
        return "mean all-reduce"
    if isinstance(hook, Compressor):
        return hook.label
    named = hook if hasattr(hook, "__qualname__") else type(hook)
    return f"{named.__module__}.{named.__qualname__}"
