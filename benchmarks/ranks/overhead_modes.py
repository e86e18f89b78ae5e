"""The ways of watching that are compared: switched on before a block, off after it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import commprof
from commprof import _native

#: In the order of the tables. "plain 2" is a second plain model: the A/A control. "always-on" is
#: "observed" in that mode, and for DDP "hooked".
COLLECTIVE_MODES = (
    *("plain", "plain 2", "installed, capture off", "observed", "always-on", "torch.profiler"),
)
DDP_MODES = (
    *("plain", "plain 2", "observed", "hooked", "always-on", "Python hook", "torch.profiler"),
)


@contextmanager
def watching(mode: str) -> Iterator[Callable[[], None]]:
    """Whatever the mode needs around a block; yields what to call at the end of each step."""
    if mode in ("observed", "hooked", "always-on"):
        kept = "always-on" if mode == "always-on" else "full"
        with tempfile.TemporaryDirectory() as directory:
            with commprof.profile(Path(directory), mode=kept) as profiler:
                yield profiler.step
            _native.native.uninstall_observer()
    elif mode == "installed, capture off":
        _native.native.install_observer()
        yield _nothing
        _native.native.uninstall_observer()
    elif mode == "torch.profiler":
        activity = torch.profiler.ProfilerActivity.CPU
        with torch.profiler.profile(activities=[activity]):
            yield _nothing
    else:
        yield _nothing


def models(make: Callable[[], nn.Module], bucket_cap_mb: float) -> dict[str, Any]:
    """One DDP model per hook, since DDP takes a hook for life; the others share "plain"'s.

    "plain 2" has its own, so that what a mere second instance changes shows in the control.
    """

    def ddp() -> DistributedDataParallel:
        torch.manual_seed(0)
        return DistributedDataParallel(make(), bucket_cap_mb=bucket_cap_mb)

    plain, second, hooked, python = ddp(), ddp(), ddp(), ddp()
    commprof.attach(hooked)
    python.register_comm_hook(None, _python_all_reduce)
    return {
        "plain": plain,
        "plain 2": second,
        "observed": plain,
        "torch.profiler": plain,
        "hooked": hooked,
        "always-on": hooked,
        "Python hook": python,
    }


def _python_all_reduce(_, bucket):  # type: ignore[no-untyped-def]  # DDP reads annotations
    """The mean all-reduce as a user would write it for timing from Python."""
    buffer = bucket.buffer().div_(dist.get_world_size())
    future = dist.all_reduce(buffer, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


def _nothing() -> None:
    pass
