"""``commprof.attach(ddp)``: times a DDP model's gradient buckets, and runs hooks or compressors.

With a communication hook, DDP divides its gradients in a separate pass, which takes 1 to 3 % of a
step. So commprof registers a hook only to run another hook or a compressor. Otherwise commprof
observes the buckets without a hook, if possible.
"""

from __future__ import annotations

import atexit
import functools
import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from commprof import _native
from commprof.capture.hook_engine import HookEngine, RunningEngine
from commprof.capture.python_hook import PythonBucketHook
from commprof.capture.recorder import recorder
from commprof.capture.settings import RankSettings, check_kernels
from commprof.ddp_parameters import hookless
from commprof.errors import CommprofError

#: A DDP communication hook: ``hook(state, bucket) -> Future[Tensor]``.
Hook = Callable[[Any, Any], Any]

#: For each model with an attachment: names of the model's inner hooks, in order of first use.
_hooks: list[list[str]] = []
_HELD = "_commprof_attachment"


class Attachment:
    """commprof's observer or hook in one DDP model.

    DDP never removes a hook. So commprof's hook calls an inner hook, which can be replaced: the
    script's own hook, a compressor, or the mean all-reduce.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        """Observes the model's buckets if possible, else registers a hook; see :func:`attach`."""
        self._ddp = ddp
        #: A BucketHook or ObservedBuckets of the native module, or a PythonBucketHook.
        self._buckets = _observed(ddp)
        self._is_hooked = self._buckets is None
        if self._is_hooked:
            self._buckets = bucket_hook_of(ddp)
        self._names: list[str] = []
        self._compressor: HookEngine | None = None
        self._running: RunningEngine | None = None
        self._mean = True  # True if the inner hook is DDP's own mean all-reduce
        self._divisor = 0  # number of ranks by which the mean divides; 0 for all
        #: Objects, such as connections, that all compressors of this model share; None before the
        #: first compressor.
        self._shared: Any = None
        _hooks.append(self._names)
        # A hook that the user registers later becomes the inner hook.
        ddp.__dict__[_HELD] = _Held(self)
        _redirect_register_comm_hook()
        _follow_joins()

    @property
    def compressor(self) -> HookEngine | None:
        """The compressor that commprof's hook runs; None if there is none."""
        return self._compressor

    @property
    def ddp(self) -> DistributedDataParallel:
        """The DDP model."""
        return self._ddp

    @property
    def bucket_hook(self) -> Any:
        """commprof's hook in the model's reducer; registered at the first access, if not before.

        All ranks must make the first access between the same two steps.
        """
        if not self._is_hooked:
            hook = bucket_hook_of(self._ddp)
            hook.recording = self._buckets.recording
            self._buckets, self._is_hooked = hook, True
        return self._buckets

    @property
    def has_own_hook(self) -> bool:
        """True if the script registered its own hook, which commprof's hook calls."""
        return bool(self._ddp._comm_hooks)

    def shared(self, engine: HookEngine) -> Any:
        """Returns objects, such as connections, that the model's compressors share.

        At the first call, ``engine`` makes these objects.
        """
        if self._shared is None:
            self._shared = engine.shared_of(self._ddp)
        return self._shared

    def use_bucket_hook(self, bucket_hook: Any) -> None:
        """Sets :attr:`bucket_hook` after the model's DDP reducer was replaced.

        ``bucket_hook`` is commprof's hook in the new reducer. Call this method between steps, and
        only if :attr:`compressor` is None.
        """
        assert self._compressor is None
        bucket_hook.recording = self.bucket_hook.recording
        self._buckets = bucket_hook

    def set_hook(self, hook: Hook | HookEngine | None, state: Any = None) -> None:
        """Replaces the inner hook that commprof's hook calls; None is DDP's own mean all-reduce.

        Call this method on all ranks between the same two steps. A replaced compressor loses its
        residuals; ``state_dict()`` and ``load_state_dict()`` can save and restore them.

        Raises:
            CommprofError: the compressor cannot start, for example because the ranks differ in
                compressor or parameters. :attr:`compressor` may be None afterwards.
        """
        if isinstance(hook, HookEngine):
            self._compress(hook)
        elif hook is not None or self._is_hooked:
            self.bucket_hook.set_hook(hook, state)
            self._release()
        self._mean, self._divisor = hook is None, 0
        self._note(hook)

    def _compress(self, compressor: HookEngine) -> None:
        """Makes commprof's hook run this compressor; all ranks call this method together."""
        if compressor is self._compressor:
            return
        compressor.require_free()
        replaced = self._running
        running: RunningEngine | None = None
        try:
            running = compressor.start(self._ddp, self.shared(compressor), replaced)
            compressor.bind(running)
        except Exception:
            if running is not None:
                running.stop()
            # The failed start may have stopped the previous compressor, which commprof's hook still
            # calls.
            if replaced is not None and (running is not None or replaced.is_stopped):
                self.set_hook(None)
            raise
        if running.is_native:
            self.bucket_hook.set_inner(running.engine)
        else:
            self.bucket_hook.set_hook(running.engine, None)
        self._release()
        self._compressor, self._running = compressor, running

    def _release(self) -> None:
        if self._compressor is not None and self._running is not None:
            self._compressor.unbind()
            self._running.stop()
        self._compressor = self._running = None

    def _note(self, hook: Hook | HookEngine | None) -> None:
        name = _name(hook)
        if name not in self._names:
            self._names.append(name)
            hooks = [", then ".join(names) for names in _hooks if names]
            recorder().add_metadata(json.dumps({"hooks": hooks}))

    @property
    def is_vacant(self) -> bool:
        """True if no inner hook was ever set, because the model's :func:`attach` failed."""
        return not self._names

    def remove(self) -> None:
        """Stops timing this model's buckets. The hook or compressor, if any, keeps running."""
        self._buckets.recording = False

    def _divide_by(self, ranks: int) -> None:
        """Sets the divisor of the mean all-reduce, see :func:`_follow_joins`; 0 for all ranks."""
        if not self._mean:
            if ranks:
                _warn_of_join()
            return
        if ranks != self._divisor and self._is_hooked:
            mean = _mean_over(ranks, self._ddp.process_group) if ranks else None
            self.bucket_hook.set_hook(mean, None)
            self._divisor = ranks

    def _register_comm_hook(self, state: object, hook: Hook) -> None:
        self._ddp._check_comm_hook(hook)
        if self._ddp._comm_hooks:
            raise RuntimeError("register_comm_hook can only be called once per model")
        self._ddp._comm_hooks.append((hook, state))
        if self._compressor is not None:
            print(
                f"commprof: the script registers its own communication hook, which replaces the "
                f"compressor {self._compressor.label} in this model",
                file=sys.stderr,
            )
        self.set_hook(hook, state)


class _Held:
    """Holds an attachment in an attribute of its model. The attachment lives as long as the model.

    A holder is copied and pickled as None: a copy of the model has no hook, and commprof may not be
    installed where a pickled model is loaded.
    """

    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


@functools.cache
def _redirect_register_comm_hook() -> None:
    """Patches DDP, so that the attachment of a model receives hooks that the script registers."""
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
    """Patches ``ddp.join()`` so that commprof's mean all-reduce divides by the same number as DDP.

    With ``divide_by_initial_world_size=False``, DDP divides by the number of ranks that have not
    joined yet. DDP counts these ranks in each forward pass, but does not pass the number to hooks.
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
        # Multiplies by the reciprocal, as DDP does, so that the results have the same bits.
        work = group.allreduce([bucket.buffer().mul_(1.0 / ranks)])
        return work.get_future().then(lambda done: done.value()[0])

    return hook


@functools.cache
def _warn_of_join() -> None:
    warnings.warn(
        "commprof: join(divide_by_initial_world_size=False) has no effect on a model with a "
        "communication hook or compressor: gradients are averaged over all ranks, as in plain DDP "
        "with a communication hook",
        stacklevel=2,
    )


def attach(
    ddp: DistributedDataParallel, hook: Hook | HookEngine | None = None, state: Any = None
) -> Attachment:
    """Records when each gradient bucket of ``ddp`` is ready, launched and completed.

    Collectives are recorded without this call. The call adds the gradient buckets to the trace, and
    can run a hook or a compressor in the model. With a hook, DDP divides the gradients in a
    separate pass, which takes additional time.

    Args:
        ddp: the model, before its first backward pass.
        hook: a communication hook of DDP, or one of ``commprof.compressors``. All ranks must attach
            a compressor together. None is DDP's own mean all-reduce.
        state: first argument of ``hook``.

    Raises:
        CommprofError: ``ddp`` is not a DDP model, already has a communication hook, or has no
            gradient buckets; the ranks do not agree on the compressor; or a ``COMMPROF_`` variable
            is not valid. After one of the last two errors, ``attach`` may be called again for the
            model.
    """
    if not isinstance(ddp, DistributedDataParallel):
        raise CommprofError(
            f"attach() needs a DistributedDataParallel model, not {type(ddp).__name__}; other "
            "strategies need no attach(), as their collectives are recorded without it"
        )
    why = hookless(ddp)
    if why and (hook is not None or not hasattr(ddp, "reducer")):
        raise CommprofError(
            f"attach(): {why}; leave attach() out, as collectives are recorded without it"
        )
    held = ddp.__dict__.get(_HELD)
    failed = held is not None and held.attachment.is_vacant
    if ddp._comm_hooks or (held is not None and not failed):
        raise CommprofError(
            "this model already has a communication hook, or attach() was called for it, and DDP "
            "allows only one hook; call attach(ddp, hook=...) once, instead of registering the "
            "hook, or leave attach() out"
        )
    RankSettings.from_environment()
    check_kernels()
    attachment = held.attachment if failed else Attachment(ddp)
    attachment.set_hook(hook, state)
    if hook is None:
        _say_if_unrecorded()
    return attachment


@functools.cache
def _say_if_unrecorded() -> None:
    """Makes rank 0 print, when its process ends, that nothing is recorded, if no capture ran."""
    rank = dist.get_rank() if dist.is_initialized() else 0

    def at_end() -> None:
        # imported here to avoid a cycle of imports
        from commprof.capture.profiler import recorded_anything

        if rank == 0 and not recorded_anything():
            print(
                "commprof: nothing is recorded: attach() alone starts no capture; put the loop "
                "into `with commprof.profile(DIRECTORY)`, or start the script with commprof run",
                file=sys.stderr,
            )

    atexit.register(at_end)


def _observed(ddp: DistributedDataParallel) -> Any:
    """Returns an observer of the model's buckets; None if a hook is needed to observe them."""
    native = _native.native
    # commprof reads the buckets at the end of the backward pass. With this option, torch 2.15 frees
    # the buckets earlier.
    gone = getattr(ddp, "lazy_bucket_allocation", False)
    return None if native is None or gone else native.ObservedBuckets(ddp.reducer)


def bucket_hook_of(ddp: DistributedDataParallel) -> Any:
    """Registers a new hook of commprof with the model's current reducer, and returns the hook.

    The reducer must have no hook yet. Without the native module, the hook is a
    ``PythonBucketHook``, else a ``BucketHook``.
    """
    native = _native.native
    if native is not None:
        group = ddp.process_group
        return native.BucketHook.attach(ddp.reducer, group, None, None)
    return PythonBucketHook.attach(ddp, recorder(), None, None)


def _name(hook: Hook | HookEngine | None) -> str:
    if hook is None:
        return "mean all-reduce"
    if isinstance(hook, HookEngine):
        return hook.label
    named = hook if hasattr(hook, "__qualname__") else type(hook)
    return f"{named.__module__}.{named.__qualname__}"
