"""Python patches for waits that the native module cannot see, and for attributes of Works.

Futures: the native module times a Work's ``wait``, but C++ cannot distinguish a collective's future
from other futures. So patches of the Work's methods report which futures belong to collectives, and
patches of the futures' methods report the waits. A rank that has left the loop of ``ddp.join()``
waits for futures that DDP's reducer made. So the reducer's ``_run_comm_hook`` is patched, too.

Events: the native module times the wait if a Work makes a device's stream wait. FSDP2 instead
records an event after its collectives, and makes the compute stream wait for the event. So a patch
of ``record`` stores the stream's last collective in the event. A later wait for the event is
reported as a wait for this collective. ``stream.wait_event`` and ``stream.wait_stream`` call the
event's methods.

Attributes of Works: while capture runs, scripts get a native Work, which holds the backend's Work.
Attributes that c10d does not define are looked up in the backend's Work.

``ddp.finalize_backward()``, from torch 2.15 on: with ``require_manual_backward_finalization``, DDP
waits for its buckets in this method. So a patch of the method reports when it begins and ends.

Coalesced calls, such as ``dist.batch_isend_irecv``: NCCL returns one Work for all operations of the
call, and the dispatcher does not see this Work. So patches of the process group's methods report
where a coalesced call begins and ends.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commprof import _native
from commprof.capture.patches.replaced import Patches
from commprof.capture.python_hook import ManualFinalize
from commprof.capture.recorder import recorder

#: Base class of torch.futures.Future, and the class of a Work's future.
_Future = torch._C.Future
_COLLECT = "_collect_all"
_FINALIZE = "finalize_backward"
_RUN_HOOK = "_run_comm_hook"


class FutureWaits:
    """Patches of the methods that return, wait for or combine futures."""

    def __init__(self) -> None:
        self._patches = Patches()

    def install(self) -> None:
        """Installs the replacements; does nothing without the native module."""
        native = _native.native
        if native is None:
            return
        # not every version of torch has the second method
        for name in ("get_future", "get_future_result"):
            original = getattr(dist.Work, name, None)
            if original is not None:
                self._patches.replace(dist.Work, name, _known_future(original, native.note_future))
        self._patches.replace(_Future, "wait", _timed_future_wait(_Future.wait, native.wait_future))
        self._patches.replace(_Future, "then", _followed(_Future.then, native.follow_futures))
        run_hook = getattr(dist.Reducer, _RUN_HOOK, None)
        if run_hook is not None:
            self._patches.replace(dist.Reducer, _RUN_HOOK, _known_hook(run_hook, native))
        collect = getattr(torch._C, _COLLECT, None)  # private to torch: it may be removed
        if collect is not None:
            self._patches.replace(torch._C, _COLLECT, _gathered(collect, native.follow_futures))

    def remove(self) -> None:
        """Restores the replaced methods."""
        self._patches.remove()


def _known_future(original: Callable[..., Any], note_future: Callable[[Any, Any], None]) -> Any:
    @wraps(original)
    def get(work: Any) -> Any:
        future = original(work)
        if not torch.compiler.is_compiling():
            note_future(work, future)
        return future

    return get


def _timed_future_wait(original: Callable[..., Any], wait_future: Callable[[Any], None]) -> Any:
    @wraps(original)
    def wait(future: Any) -> Any:
        if not torch.compiler.is_compiling():
            wait_future(future)
        return original(future)

    return wait


def _followed(original: Callable[..., Any], follow: Callable[[Any, list[Any]], None]) -> Any:
    @wraps(original)
    def then(future: Any, callback: Any) -> Any:
        child = original(future, callback)
        if not torch.compiler.is_compiling():
            follow(child, [future])
        return child

    return then


def _gathered(original: Callable[..., Any], follow: Callable[[Any, list[Any]], None]) -> Any:
    @wraps(original)
    def collect_all(futures: list[Any]) -> Any:
        together = original(futures)
        if not torch.compiler.is_compiling():
            follow(together, futures)
        return together

    return collect_all


class ManualFinalization:
    """Patch of the method ``finalize_backward`` of DDP models."""

    def __init__(self) -> None:
        self._patches = Patches()

    def install(self) -> None:
        """Installs the replacement; does nothing if DDP has no such method."""
        original = getattr(DistributedDataParallel, _FINALIZE, None)
        if original is not None:
            marks = _native.native or ManualFinalize(recorder())
            self._patches.replace(
                DistributedDataParallel, _FINALIZE, _timed_finalisation(original, marks)
            )

    def remove(self) -> None:
        """Restores the replaced method."""
        self._patches.remove()


def _known_hook(original: Callable[..., Any], native: Any) -> Any:
    @wraps(original)
    def run_hook(reducer: Any, bucket: Any) -> Any:
        before = native.last_issued()
        future = original(reducer, bucket)
        if native.last_issued() != before and isinstance(future, _Future):
            native.note_last_issued(future)
        return future

    return run_hook


def _timed_finalisation(original: Callable[..., Any], marks: Any) -> Any:
    @wraps(original)
    def finalize_backward(model: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(model)
        marks.begin_manual_finalize()
        try:
            return original(model)
        finally:
            marks.end_manual_finalize()

    return finalize_backward


#: Attribute of an event that holds the last collective before the event.
_BEHIND = "_commprof_behind"


class StreamWaits:
    """Patches of the methods that record an event, or that make a stream wait for an event."""

    def __init__(self) -> None:
        self._patches = Patches()

    def install(self, event: type[Any] | None = None) -> None:
        """Installs the replacements; does nothing without the native module.

        Args:
            event: the event class to patch. None stands for ``torch.cuda.Event``; nothing is
                patched then if torch was built without CUDA.
        """
        native = _native.native
        if event is None and torch.backends.cuda.is_built():
            event = torch.cuda.Event
        if native is None or event is None:
            return
        self._patches.replace(event, "record", _noted(event.record, native))
        self._patches.replace(event, "wait", _timed_event_wait(event.wait, native))

    def remove(self) -> None:
        """Restores the replaced methods."""
        self._patches.remove()


def _named(stream: Any) -> tuple[int, int] | None:
    """Returns a stream's device and id; None stands for the current stream."""
    return None if stream is None else (int(stream.device_index), int(stream.stream_id))


def _noted(original: Callable[..., Any], native: Any) -> Any:
    @wraps(original)
    def record(event: Any, stream: Any = None) -> Any:
        result = original(event, stream)
        if torch.compiler.is_compiling():
            return result
        setattr(event, _BEHIND, native.last_on_stream(_named(stream)))
        return result

    return record


def _timed_event_wait(original: Callable[..., Any], native: Any) -> Any:
    @wraps(original)
    def wait(event: Any, stream: Any = None) -> Any:
        behind = None if torch.compiler.is_compiling() else getattr(event, _BEHIND, None)
        if behind is None:
            return original(event, stream)
        with native.StreamWait(_named(stream), behind):
            return original(event, stream)

    return wait


def show_inner_attributes() -> None:
    """Makes attributes of a backend's Work available on the native Work that wraps it.

    This is not undone when capture stops.
    """
    native = _native.native
    if native is None or "__getattr__" in vars(dist.Work):
        return

    def find(work: Any, name: str) -> Any:
        special = name.startswith("__")  # Python's own protocols, such as copying
        inner = None if special else native.inner_work(work)
        if inner is None:
            raise AttributeError(f"{type(work).__name__!r} object has no attribute {name!r}")
        return getattr(inner, name)

    dist.Work.__getattr__ = find


#: Methods that begin and end a coalesced call. They are private to torch, which may remove them.
_START, _END = "_start_coalescing", "_end_coalescing"


class Coalescing:
    """Patches of the process group's methods that begin and end a coalesced call."""

    def __init__(self) -> None:
        self._patches = Patches()

    def install(self) -> None:
        """Installs the replacements; does nothing if the native module or a method is missing."""
        native, group = _native.native, dist.ProcessGroup
        start, end = getattr(group, _START, None), getattr(group, _END, None)
        if native is None or start is None or end is None:
            return
        self._patches.replace(group, _START, _begun(start, native))
        self._patches.replace(group, _END, _ended(end, native))

    def remove(self) -> None:
        """Restores the replaced methods."""
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
