"""Recording modes that are compared; commprof is imported only when a mode needs it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

#: Modes in which single calls are compared; "plain 2" is the A/A control.
COLLECTIVE_MODES = (
    *("plain", "plain 2", "installed, capture off", "observed", "always-on", "torch.profiler"),
)


@contextmanager
def watching(mode: str) -> Iterator[None]:
    """Records the calls in the block in one of COLLECTIVE_MODES."""
    from commprof import _native, profile

    if mode in ("observed", "always-on"):
        kept = "always-on" if mode == "always-on" else "full"
        with tempfile.TemporaryDirectory() as directory:
            with profile(directory, mode=kept):
                yield
            _native.native.uninstall_observer()
    elif mode == "installed, capture off":
        _native.native.install_observer()
        yield
        _native.native.uninstall_observer()
    else:
        with _profiler() if mode == "torch.profiler" else nullcontext():
            yield


@contextmanager
def recorded(
    mode: str, model: DistributedDataParallel, directory: str
) -> Iterator[tuple[Callable[[], AbstractContextManager[Any]], Callable[[], None]]]:
    """Puts a process into one mode; yields two functions.

    The first function returns a context for the steps of one turn. The second function must be
    called at the end of each step.

    ``mode`` is "plain", "torch.profiler", or a mode of commprof: "always-on", "full", "full,
    attached" or "full, hook". In "full, hook", commprof's hook averages gradients, without a
    compressor.
    """
    if mode == "plain":
        yield nullcontext, _nothing
    elif mode == "torch.profiler":  # new in each turn, because it keeps all events
        yield _profiler, _nothing
    else:
        import commprof

        kept, _, attached = mode.partition(", ")
        with commprof.profile(directory, mode=kept) as profiler:
            if attached:
                attachment = commprof.attach(model)
                if attached == "hook":
                    # reading this property registers the hook
                    assert attachment.bucket_hook is not None
            yield nullcontext, profiler.step


def _profiler() -> AbstractContextManager[Any]:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_initialized():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    return torch.profiler.profile(activities=activities)


def _nothing() -> None:
    pass
