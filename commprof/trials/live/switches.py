"""What a trial switches in a DDP model that is at work: its exchange, and its bucket cap.

DDP cuts its buckets once. But what a model does with them lies in its ``reducer``, and a model
can have several: each registers hooks with autograd when it is made, and they do nothing until
the model's forward has told that reducer of a backward pass to come. So there is one reducer per
cap, made when its first turn comes, and a switch puts another one into the model. The model's
own is never changed: its buckets, and with them the order in which any number of ranks sums, are
those of an untouched run.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from commprof.capture.attachment import Attachment, bucket_hook_of
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


#: Where DDP keeps its caps; newer versions have all of them in one object as well.
_CAP_NAMES = ("bucket_bytes_cap", "bucket_bytes_cap_default", "_bucket_config")
_MIB = 1024 * 1024


def obstacle(ddp: DistributedDataParallel) -> str:
    """Why a model cannot have other buckets; empty if it can."""
    if ddp.find_unused_parameters:
        # A reducer notes unused parameters also while another one is at work.
        return "it looks for unused parameters (find_unused_parameters=True)"
    if ddp.static_graph:
        return "its graph is static, which DDP learns once (static_graph=True)"
    if getattr(ddp, "mixed_precision", None) is not None:
        return "it has DDP's mixed precision"
    return ""


@dataclasses.dataclass(frozen=True)
class _Bucketing:
    reducer: Any
    #: DDP's own log of that reducer; it keeps it alive.
    logger: Any
    #: commprof's hook in it.
    hook: Any


class Bucketings:
    """The reducers of one model; one of them is at work."""

    def __init__(self, attachment: Attachment) -> None:
        """Takes a model that is attached, with the reducer that it has."""
        self._attachment = attachment
        self._ddp = attachment.ddp
        own = _Bucketing(self._ddp.reducer, self._ddp.logger, attachment.bucket_hook)
        self._by_cap: dict[float | None, _Bucketing] = {None: own}

    def use(self, cap_mb: float | None) -> None:
        """Puts the buckets of this cap to work; None: the model's own.

        Call it between steps, on all ranks at the same step, with nothing inside the hook but
        the mean all-reduce. The first step with a new cap exchanges one bucket, the next cuts
        them, as after DDP is made.
        """
        if cap_mb not in self._by_cap:
            self._by_cap[cap_mb] = self._made(cap_mb)
        chosen = self._by_cap[cap_mb]
        self._ddp.reducer, self._ddp.logger = chosen.reducer, chosen.logger
        self._attachment.use_bucket_hook(chosen.hook)

    def close(self) -> None:
        """Back to the model's own; the others' memory and autograd hooks go."""
        self.use(None)
        own = self._by_cap[None]
        for bucketing in self._by_cap.values():
            if bucketing is not own:
                bucketing.reducer._remove_autograd_hooks()
        self._by_cap = {None: own}

    def _made(self, cap_mb: float | None) -> _Bucketing:
        assert cap_mb is not None
        ddp = self._ddp
        before = {name: getattr(ddp, name) for name in _CAP_NAMES if hasattr(ddp, name)}
        cap_bytes = int(cap_mb * _MIB)
        ddp.bucket_bytes_cap = cap_bytes
        ddp.bucket_bytes_cap_default = False
        if "_bucket_config" in before:
            ddp._bucket_config = dataclasses.replace(
                before["_bucket_config"],
                bucket_bytes_cap=cap_bytes,
                per_bucket_bytes_caps=(),
                first_bucket_bytes_cap=cap_bytes,
            )
        parameters, sparse = ddp._build_params_for_reducer()
        names = ddp._build_debug_param_to_name_mapping(parameters)
        try:
            ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)
        finally:
            for name, value in before.items():
                setattr(ddp, name, value)
        return _Bucketing(ddp.reducer, ddp.logger, bucket_hook_of(ddp))
