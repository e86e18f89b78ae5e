"""Switches the gradient exchange and the buckets of a DDP model during training.

DDP cuts its buckets once, in the model's ``reducer``. A model can have several reducers, because a
reducer does nothing until the model's forward announces a backward pass to it. So this module makes
one reducer per bucket setting, and a switch sets the model's ``reducer``. The reducer that DDP made
is never modified.
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
from commprof.ddp_parameters import reduced
from commprof.tune.compressors import Compressor, parse
from commprof.tune.compressors.groups import compresses_natively
from commprof.tune.compressors.running import disagreement
from commprof.tune.compressors.torch_ops import lacks
from commprof.tune.trials.candidates import HEADROOM, HOOKS, OWN_BUCKETS, BucketSetting, Candidate

Hook = Callable[[Any, Any], Any]


def make(name: str, ddp: DistributedDataParallel) -> Hook:
    """Makes the hook ``HOOKS[name]`` for one model and one block of steps."""
    module, _, function = HOOKS[name].make.partition(":")
    hook: Hook = getattr(importlib.import_module(module), function)(ddp)
    return hook


def noop(_: object, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Communication hook that exchanges nothing, and returns the bucket unchanged."""
    future: Future[torch.Tensor] = Future()
    future.set_result(bucket.buffer())
    return future


def no_overlap(ddp: DistributedDataParallel) -> Hook:
    """Returns a hook that computes DDP's mean, but only when all buckets are ready."""
    return _Held(ddp.process_group).hook


class _Held:
    """Holds the buckets of a backward pass until the last bucket is ready."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._waiting: list[tuple[torch.Tensor, Future[torch.Tensor]]] = []

    def hook(self, _: object, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        device = bucket.buffer().device
        # Only a future with devices makes DDP's stream wait for the all-reduce.
        mean: Future[torch.Tensor] = Future(devices=[] if device.type == "cpu" else [device])
        self._waiting.append((bucket.buffer(), mean))
        if bucket.is_last():
            waiting, self._waiting = self._waiting, []
            for buffer, future in waiting:
                self._exchange(buffer, future)
        return mean

    def _exchange(self, buffer: torch.Tensor, mean: Future[torch.Tensor]) -> None:
        # Like DDP, multiplies by the reciprocal.
        buffer.mul_(1.0 / self._group.size())

        def finish(done: Future[list[torch.Tensor]]) -> None:
            try:
                mean.set_result(done.value()[0])
            except Exception as error:  # raised by backward(), which waits for the bucket
                mean.set_exception(error)

        self._group.allreduce([buffer]).get_future().add_done_callback(finish)


#: Attribute with all of DDP's bucket caps, in newer versions of torch.
_CONFIG = "_bucket_config"
#: Attributes in which DDP keeps its bucket settings.
_SETTINGS = ("bucket_bytes_cap", "bucket_bytes_cap_default", _CONFIG, "gradient_as_bucket_view")
_MIB = 1024 * 1024


def obstacle(ddp: DistributedDataParallel) -> str:
    """Returns the reason why a model's buckets cannot be changed; empty if they can."""
    if ddp.find_unused_parameters:
        # A reducer would mark unused parameters even while another reducer is in use.
        return "the model searches for unused parameters (find_unused_parameters=True)"
    if ddp.static_graph:
        return "DDP learns a static graph only in the first backward passes (static_graph=True)"
    if getattr(ddp, "mixed_precision", None) is not None:
        return "the model has DDP's mixed precision"
    if getattr(ddp, "require_manual_backward_finalization", False):
        return "the script finalises backward itself (require_manual_backward_finalization=True)"
    return ""


@dataclasses.dataclass(frozen=True)
class _Bucketing:
    reducer: Any
    #: DDP's logger of the reducer; the logger keeps the reducer alive.
    logger: Any
    hook: Any


class Bucketings:
    """The reducers of one model, one of which is in use."""

    def __init__(self, attachment: Attachment) -> None:
        """Stores an attached model, and the model's own reducer."""
        self._attachment = attachment
        self._ddp = attachment.ddp
        own_buckets = _Bucketing(self._ddp.reducer, self._ddp.logger, attachment.bucket_hook)
        self._made: dict[BucketSetting, _Bucketing] = {OWN_BUCKETS: own_buckets}
        self._now = OWN_BUCKETS

    def use(self, buckets: BucketSetting) -> None:
        """Switches to these buckets.

        Call this between steps, on all ranks at the same step, while no hook is in use. The first
        step with new buckets exchanges all gradients in a single bucket, as in a new DDP model.
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
        """Switches back to the model's own reducer and frees all other reducers."""
        self.use(OWN_BUCKETS)
        own_buckets = self._made[OWN_BUCKETS]
        for bucketing in self._made.values():
            if bucketing is not own_buckets:
                bucketing.reducer._remove_autograd_hooks()
        self._made = {OWN_BUCKETS: own_buckets}

    def _take_gradients_out(self) -> None:
        for _, parameter in reduced(self._ddp):
            if parameter.grad is not None:
                parameter.grad = parameter.grad.detach().clone()

    def _make(self, buckets: BucketSetting) -> _Bucketing:
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


#: DDP's flag that broadcasts rank 0's buffers in forward: its name, and its name in older versions
#: of torch.
_BUFFER_FLAGS = ("forward_sync_buffers", "broadcast_buffers")


class ReplicatedModel:
    """One DDP model that takes part in a trial."""

    def __init__(self, attachment: Attachment) -> None:
        """Stores an attached model, without changing it."""
        self.attachment = attachment
        self._ddp = attachment.ddp

    @functools.cached_property
    def _bucketings(self) -> Bucketings:
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
        """True if the candidate has no settings of FSDP2."""
        return not candidate.sharding.count

    def impossible(self, candidate: Candidate) -> str:
        """Returns the reason why this model cannot use a candidate; empty if it can."""
        if not self.is_for(candidate):
            return "it is a setting of FSDP2, but the model uses DDP"
        if candidate.compressor:
            compressor = parse(candidate.compressor)
            if compresses_natively(self._ddp):
                why = disagreement(self.attachment.shared(compressor), compressor, self._ddp)
            else:
                why = lacks(compressor)
            if why:
                return why
        if candidate.buckets.label and (why := obstacle(self._ddp)):
            return f"DDP's buckets cannot be rebuilt: {why}"
        if candidate.buckets.first_mb is not None and not hasattr(self._ddp, _CONFIG):
            return "this version of torch cannot change the cap of the first bucket"
        if candidate.label == BucketSetting(as_view=self._ddp.gradient_as_bucket_view).label:
            return f"the model has {candidate.label} already"
        return ""

    def gathered(self, text: str) -> list[str]:
        """Gathers the texts of the model's ranks. All these ranks call this together."""
        texts = [""] * self.world_size
        dist.all_gather_object(texts, text, group=self._ddp.process_group)
        return texts

    def held_bytes(self, _: object) -> float:
        """Returns 0, because a DDP model gathers no parameters."""
        return 0.0

    def enter(self, candidate: Candidate, length: int) -> None:
        """Applies a candidate for a block of ``length`` steps."""
        self._bucketings.use(candidate.buckets)
        if candidate.compressor:
            measured = length if compresses_natively(self._ddp) else 0
            self.attachment.set_hook(_compressor(candidate.compressor, measured))
        elif candidate.hook:
            self.attachment.set_hook(make(candidate.hook, self._ddp))
        elif candidate.label == HEADROOM:
            self.attachment.set_hook(noop)
            self._sync_buffers(False)

    def leave(self) -> None:
        """Restores the model's own buckets and gradient exchange."""
        self.attachment.set_hook(None)
        self._sync_buffers(True)
        self._bucketings.use(OWN_BUCKETS)
        if self.attachment.has_own_hook:
            self.attachment.set_hook(*self._ddp._comm_hooks[0])

    def close(self) -> None:
        """Frees everything that was made for the trial."""
        self._bucketings.close()

    def _sync_buffers(self, on: bool) -> None:
        ddp = self._ddp
        name = next(flag for flag in _BUFFER_FLAGS if flag in vars(ddp))
        attribute = "_commprof_sync_buffers"
        if not on:
            setattr(ddp, attribute, getattr(ddp, name))
            setattr(ddp, name, False)
        elif attribute in vars(ddp):
            setattr(ddp, name, getattr(ddp, attribute))
            delattr(ddp, attribute)


def _compressor(text: str, measure_every: int) -> Compressor:
    """Makes the compressor that ``text`` names, for one block of steps.

    The option ``start_step`` is left out, because it counts the steps of a whole run. The argument
    ``measure_every`` applies if ``text`` does not set that option; 0 measures no errors.
    """
    made = parse(text)
    options = {name: value for name, value in made.options.items() if name != "start_step"}
    return Compressor(
        made.scheme, options, seed=made.seed, measure_every=made.measure_every or measure_every
    )
