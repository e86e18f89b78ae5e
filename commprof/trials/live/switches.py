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
import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from commprof.capture.attachment import Attachment, bucket_hook_of
from commprof.compressors import Compressor, parse
from commprof.compressors.torch_ops import lacks
from commprof.trials.candidates import HEADROOM, HOOKS, OWN_BUCKETS, Buckets, Candidate

Hook = Callable[[Any, Any], Any]


def make(name: str, ddp: DistributedDataParallel) -> Hook:
    """Makes the named exchange of ``HOOKS`` for one model and block; call it on all ranks."""
    module, _, function = HOOKS[name].make.partition(":")
    hook: Hook = getattr(importlib.import_module(module), function)(ddp)
    return hook


def noop(_: object, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """A hook that returns the bucket at once: nothing is exchanged."""
    future: Future[torch.Tensor] = Future()
    future.set_result(bucket.buffer())
    return future


def no_overlap(ddp: DistributedDataParallel) -> Hook:
    """A hook that starts DDP's means only when the last bucket is ready; the same bits."""
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
_CONFIG = "_bucket_config"
_SETTINGS = ("bucket_bytes_cap", "bucket_bytes_cap_default", _CONFIG, "gradient_as_bucket_view")
_MIB = 1024 * 1024


def obstacle(ddp: DistributedDataParallel) -> str:
    """Says why a model cannot have other buckets; empty if it can."""
    if ddp.find_unused_parameters:
        # A reducer notes unused parameters also while another one is at work.
        return "it looks for unused parameters (find_unused_parameters=True)"
    if ddp.static_graph:
        return "its graph is static, which DDP learns once (static_graph=True)"
    if getattr(ddp, "mixed_precision", None) is not None:
        return "it has DDP's mixed precision"
    if getattr(ddp, "require_manual_backward_finalization", False):
        return "its script ends backward passes (require_manual_backward_finalization=True)"
    return ""


@dataclasses.dataclass(frozen=True)
class _Bucketing:
    reducer: Any
    #: DDP's own log of that reducer; it keeps it alive.
    logger: Any
    #: commprof's hook in it.
    hook: Any


class Bucketings:
    """The reducers of one model, one of which is in use."""

    def __init__(self, attachment: Attachment) -> None:
        """Takes a model that is attached, with the reducer that it has."""
        self._attachment = attachment
        self._ddp = attachment.ddp
        own = _Bucketing(self._ddp.reducer, self._ddp.logger, attachment.bucket_hook)
        self._made: dict[Buckets, _Bucketing] = {OWN_BUCKETS: own}
        self._now = OWN_BUCKETS

    def use(self, buckets: Buckets) -> None:
        """Switches to these buckets.

        Call it between steps, on all ranks at the same step, with nothing inside the hook but
        the mean all-reduce. The first step with new ones exchanges one bucket, the next cuts
        them, as after DDP is made.
        """
        if buckets not in self._made:
            self._made[buckets] = self._make(buckets)
        if self._now.as_view and buckets is not self._now:
            self._take_gradients_out()
        self._now = buckets
        chosen = self._made[buckets]
        self._ddp.reducer, self._ddp.logger = chosen.reducer, chosen.logger
        self._attachment.use_bucket_hook(chosen.hook)

    def close(self) -> None:
        """Returns to the model's own buckets and frees the others."""
        self.use(OWN_BUCKETS)
        own = self._made[OWN_BUCKETS]
        for bucketing in self._made.values():
            if bucketing is not own:
                bucketing.reducer._remove_autograd_hooks()
        self._made = {OWN_BUCKETS: own}

    def _take_gradients_out(self) -> None:
        """Gradients no longer lie in buckets that are about to rest."""
        for parameter in self._ddp.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.detach().clone()

    def _make(self, buckets: Buckets) -> _Bucketing:
        ddp = self._ddp
        before = {name: getattr(ddp, name) for name in _SETTINGS if hasattr(ddp, name)}
        if buckets.as_view is not None:
            ddp.gradient_as_bucket_view = buckets.as_view
        if buckets.cap_mb is not None:
            ddp.bucket_bytes_cap = int(buckets.cap_mb * _MIB)
            ddp.bucket_bytes_cap_default = False
        if buckets.recuts and _CONFIG in before:
            config, first_mb = before[_CONFIG], buckets.first_mb
            first = int(first_mb * _MIB) if first_mb is not None else ddp.bucket_bytes_cap
            ddp._bucket_config = dataclasses.replace(
                config,
                bucket_bytes_cap=ddp.bucket_bytes_cap,
                per_bucket_bytes_caps=(),
                first_bucket_bytes_cap=first,
            )
        parameters, sparse = ddp._build_params_for_reducer()
        names = ddp._build_debug_param_to_name_mapping(parameters)
        try:
            ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)
        finally:
            for name, value in before.items():
                setattr(ddp, name, value)
        return _Bucketing(ddp.reducer, ddp.logger, bucket_hook_of(ddp))


#: Where a DDP model says that rank 0's buffers go to all in forward; older versions have the other.
_BUFFER_FLAGS = ("forward_sync_buffers", "broadcast_buffers")


class ReplicatedModel:
    """One DDP model that takes part in a trial."""

    def __init__(self, attachment: Attachment) -> None:
        """Takes a model that is attached."""
        self.attachment = attachment
        self._ddp = attachment.ddp

    @functools.cached_property
    def _bucketings(self) -> Bucketings:
        """Of the reducer that the model has when its trial begins."""
        return Bucketings(self.attachment)

    @property
    def has_lost_its_group(self) -> bool:
        """True if the script destroyed the group over which this model exchanges gradients."""
        try:
            dist.get_process_group_ranks(self._ddp.process_group)
        except (KeyError, ValueError):
            return True
        return False

    @property
    def has_own_hook(self) -> bool:
        """True if the script registered a communication hook of its own."""
        return self.attachment.has_own_hook

    @property
    def world_size(self) -> int:
        """Number of ranks that exchange gradients."""
        return int(self._ddp.process_group.size())

    def is_for(self, candidate: Candidate) -> bool:
        """True if a candidate sets anything for DDP models."""
        return not candidate.sharding.count

    def impossible(self, candidate: Candidate) -> str:
        """Says why this model cannot have a candidate's settings; empty if it can."""
        if not self.is_for(candidate):
            return "it is a setting of FSDP2, and the model is one of DDP's"
        if candidate.compressor and not self.attachment.is_native:
            return lacks(parse(candidate.compressor).scheme)
        if candidate.buckets.label and (why := obstacle(self._ddp)):
            return f"DDP's buckets cannot be cut anew: {why}"
        if candidate.buckets.first_mb is not None and not hasattr(self._ddp, _CONFIG):
            return "this torch cuts the first bucket by a constant"
        if candidate.buckets.as_view is self._ddp.gradient_as_bucket_view:
            return f"the model has {candidate.buckets.label} already"
        return ""

    def held_bytes(self, _: object) -> float:
        """Returns 0: nothing is held beyond what the model holds now."""
        return 0.0

    def enter(self, candidate: Candidate, length: int) -> None:
        """Applies a candidate; ``length``, of its block in steps, is for compressors."""
        self._bucketings.use(candidate.buckets)
        if candidate.compressor:
            self.attachment.set_hook(_compressor(candidate.compressor, length))
        elif candidate.hook:
            self.attachment.set_hook(make(candidate.hook, self._ddp))
        elif candidate.label == HEADROOM:
            self.attachment.set_hook(noop)
            self._sync_buffers(False)

    def leave(self) -> None:
        """Returns to DDP's own mean and buckets."""
        self.attachment.set_hook(None)
        self._sync_buffers(True)
        self._bucketings.use(OWN_BUCKETS)
        if self.attachment.has_own_hook:
            self.attachment.set_hook(*self._ddp._comm_hooks[0])

    def close(self) -> None:
        """Ends the model's part; nothing of the trial stays."""
        self._bucketings.close()

    def _sync_buffers(self, on: bool) -> None:
        """Whether forward sends rank 0's buffers; only ever switched off and back on."""
        ddp = self._ddp
        name = next(flag for flag in _BUFFER_FLAGS if flag in vars(ddp))
        kept = "_commprof_sync_buffers"
        if not on:
            setattr(ddp, kept, getattr(ddp, name))
            setattr(ddp, name, False)
        elif kept in vars(ddp):
            setattr(ddp, name, getattr(ddp, kept))
            delattr(ddp, kept)


def _compressor(text: str, length: int) -> Compressor:
    """A new one, without residuals; it measures its error in the first step only."""
    made = parse(text)
    if made.measure_every == 0:
        separator = "," if ":" in text else ":"
        made = parse(f"{text}{separator}measure_every={length}")
    return made
