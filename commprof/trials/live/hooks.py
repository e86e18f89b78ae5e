"""Exchanges that trials try; DDP calls them as ``hook(state, bucket)``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from commprof.trials.candidates import HOOKS

Hook = Callable[[Any, Any], Any]


def make(name: str, ddp: DistributedDataParallel) -> Hook:
    """The named exchange of ``HOOKS`` for one model and one block; call it on all ranks."""
    module, _, function = HOOKS[name].make.partition(":")
    hook: Hook = getattr(importlib.import_module(module), function)(ddp)
    return hook


def noop(_: object, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Returns the bucket at once; nothing is exchanged and every rank keeps its own gradients."""
    future: Future[torch.Tensor] = Future()
    future.set_result(bucket.buffer())
    return future


def no_overlap(ddp: DistributedDataParallel) -> Hook:
    """DDP's means, none begun before the last bucket is ready; the same bits as DDP's."""
    return _Held(ddp.process_group).hook


class _Held:
    """Buckets of one backward pass that wait for the last one."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._waiting: list[tuple[torch.Tensor, Future[torch.Tensor]]] = []

    def hook(self, _: object, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        mean: Future[torch.Tensor] = Future()
        self._waiting.append((bucket.buffer(), mean))
        if bucket.is_last():
            waiting, self._waiting = self._waiting, []
            for buffer, future in waiting:
                self._exchange(buffer, future)
        return mean

    def _exchange(self, buffer: torch.Tensor, mean: Future[torch.Tensor]) -> None:
        # As DDP divides: by the reciprocal.
        buffer.mul_(1.0 / self._group.size())

        def finish(done: Future[list[torch.Tensor]]) -> None:
            try:
                mean.set_result(done.value()[0])
            except Exception as error:  # goes on to backward(), which waits for the bucket
                mean.set_exception(error)

        self._group.allreduce([buffer]).get_future().add_done_callback(finish)
