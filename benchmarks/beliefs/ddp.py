"""Beliefs about DistributedDataParallel, its hooks and the optimizers beside it."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.beliefs.asking import belief, operators, outcome

BUCKETS = "csrc/torch/capture/ddp/observed_buckets.cpp"
HOOK = "csrc/torch/capture/ddp/ddp_hook.h"
THEORY = "commprof/workloads/strategies/theory.py"
ATTACHMENT = "commprof/capture/attachment.py"


def _layers(count: int = 4, width: int = 64) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count)))


def _pass(model: nn.Module, width: int = 64) -> None:
    model(torch.ones(2, width)).square().sum().backward()


def _settled(**options: Any) -> DistributedDataParallel:
    """Returns a model of four layers after DDP has rebuilt the buckets; each layer has a bucket."""
    model = DistributedDataParallel(_layers(), bucket_cap_mb=0.01, **options)
    for _ in range(3):
        _pass(model)
    return model


def _hook(note: Callable[[Any], object] = id, factor: float = 1.0) -> Callable[[Any, Any], Any]:
    """Returns a hook that passes a bucket to ``note``, and then exchanges the bucket."""

    def hook(_: Any, bucket: Any) -> Any:
        note(bucket)
        work = dist.all_reduce(bucket.buffer().mul_(factor), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    # In this file annotations are text, and DDP refuses such annotations.
    hook.__annotations__.clear()
    return hook


@belief("making a DDP model broadcasts its parameters, and nothing else", "broadcast_")
def ddp_is_made() -> str:
    return operators(lambda: DistributedDataParallel(_layers()))


@belief("with init_sync=False making a DDP model exchanges nothing", "nothing")
def ddp_is_made_unsynced() -> str:
    return operators(lambda: DistributedDataParallel(_layers(), init_sync=False))


@belief(
    "after DDP rebuilt its buckets, a pass has one all-reduce per bucket", "4 allreduce_", THEORY
)
def ddp_pass() -> str:
    model = _settled()
    return operators(lambda: _pass(model))


@belief(
    "find_unused_parameters adds one all-reduce, for the map of used parameters",
    "5 allreduce_",
    THEORY,
)
def ddp_finds_unused() -> str:
    model = _settled(find_unused_parameters=True)
    return operators(lambda: _pass(model))


@belief(
    "a second backward through a kept graph exchanges its gradients again", "4 allreduce_", THEORY
)
def ddp_second_backward() -> str:
    model = _settled()
    loss = model(torch.ones(2, 64)).square().sum()
    loss.backward(retain_graph=True)
    return operators(loss.backward)


@belief("two forwards and one backward of both losses exchange once", "4 allreduce_", THEORY)
def ddp_two_forwards() -> str:
    model = _settled()

    def call() -> None:
        losses = [model(torch.ones(2, 64)).square().sum() for _ in range(2)]
        (losses[0] + losses[1]).backward()

    return operators(call)


@belief("two forwards, and then two backwards, exchange twice", "8 allreduce_", THEORY)
def ddp_two_backwards() -> str:
    model = _settled()

    def call() -> None:
        losses = [model(torch.ones(2, 64)).square().sum() for _ in range(2)]
        for loss in losses:
            loss.backward()

    return operators(call)


@belief(
    "torch.autograd.grad of a DDP model's loss exchanges gradients as backward does",
    "4 allreduce_",
    THEORY,
)
def ddp_autograd_grad() -> str:
    model = _settled()
    return operators(
        lambda: torch.autograd.grad(
            model(torch.ones(2, 64)).square().sum(), list(model.parameters())
        )
    )


@belief("model.module(x) instead of model(x) exchanges nothing in backward", "nothing", THEORY)
def ddp_inner_module() -> str:
    model = _settled()
    return operators(lambda: _pass(model.module))


@belief("model.module(x) after a forward of the model exchanges nothing either", "nothing", THEORY)
def ddp_inner_module_after_forward() -> str:
    model = _settled()
    model(torch.ones(2, 64))
    return operators(lambda: _pass(model.module))


@belief(
    "backward inside no_sync exchanges nothing, even after a forward outside", "nothing", THEORY
)
def ddp_no_sync_after_forward() -> str:
    model = _settled()
    model(torch.ones(2, 64))

    def call() -> None:
        with model.no_sync():
            _pass(model)

    return operators(call)


@belief("no_sync around backward alone is enough to exchange nothing", "nothing", THEORY)
def ddp_no_sync_around_backward() -> str:
    model = _settled()

    def call() -> None:
        loss = model(torch.ones(2, 64)).square().sum()
        with model.no_sync():
            loss.backward()

    return operators(call)


@belief("with no_sync around forward alone, backward exchanges gradients", "4 allreduce_", THEORY)
def ddp_no_sync_around_forward() -> str:
    model = _settled()

    def call() -> None:
        with model.no_sync():
            loss = model(torch.ones(2, 64)).square().sum()
        loss.backward()

    return operators(call)


def _bits(hooked: bool, kept: bool, ranks: int, **options: Any) -> list[torch.Tensor]:
    model = DistributedDataParallel(_layers(), **options)
    if hooked:
        model.register_comm_hook(None, _hook(factor=1.0 / ranks))
    for step in range(3):
        model.zero_grad(set_to_none=not kept)
        torch.manual_seed(10 * step + dist.get_rank())
        model(torch.randn(8, 64)).square().sum().backward()
    return [
        parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
    ]


def _same(one: list[torch.Tensor], other: list[torch.Tensor]) -> str:
    same = all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    return "same bits" if same else "other last bits"


@belief(
    "with 3 ranks, a hook that multiplies by 1/3 gives the same bits as DDP's own mean",
    "same bits",
    HOOK,
    ranks=3,
)
def ddp_multiplies() -> str:
    return _same(_bits(False, False, 3), _bits(True, False, 3))


@belief(
    "a hook that multiplies by 1/3 gives the same bits with gradient_as_bucket_view=True",
    "same bits",
    HOOK,
    ranks=3,
)
def ddp_multiplies_views() -> str:
    views = {"gradient_as_bucket_view": True}
    return _same(_bits(False, False, 3, **views), _bits(True, False, 3, **views))


@belief(
    "a hook that multiplies by 1/3 gives the same bits if zero_grad keeps the bucket views",
    "same bits",
    HOOK,
    ranks=3,
)
def ddp_multiplies_kept_views() -> str:
    views = {"gradient_as_bucket_view": True}
    return _same(_bits(False, True, 3, **views), _bits(True, True, 3, **views))


@belief("gradient_as_bucket_view changes no bit of the gradients", "same bits", HOOK, ranks=3)
def ddp_views_change_bits() -> str:
    return _same(_bits(False, True, 3), _bits(False, True, 3, gradient_as_bucket_view=True))


@belief(
    "bucket_cap_mb changes no bit of the gradients",
    "same bits",
    "commprof/tune/trials/live/switches.py",
    ranks=3,
)
def ddp_caps_change_bits() -> str:
    return _same(_bits(False, False, 3), _bits(False, False, 3, bucket_cap_mb=0.01))


@belief(
    "a hook sees bucket 0 first, and at the end the bucket whose is_last() is true",
    "0 1 2 3, last at the end",
    BUCKETS,
)
def ddp_hook_order() -> str:
    seen: list[Any] = []
    model = DistributedDataParallel(_layers(), bucket_cap_mb=0.01)
    model.register_comm_hook(
        None, _hook(lambda bucket: seen.append((bucket.index(), bucket.is_last())))
    )
    for _ in range(3):
        _pass(model)
    last = seen[-4:]
    place = [one[1] for one in last]
    end = "last at the end" if place == [False] * 3 + [True] else f"last at {place.index(True)}"
    return f"{' '.join(str(one[0]) for one in last)}, {end}"


@belief(
    "on CPUs a hook runs in the thread that called backward()",
    "the same thread",
    "csrc/torch/capture/ddp/finalize.cpp",
)
def ddp_hook_thread() -> str:
    threads: set[int] = set()
    model = DistributedDataParallel(_layers())
    model.register_comm_hook(None, _hook(lambda _: threads.add(threading.get_ident())))
    _pass(model)
    return "the same thread" if threads == {threading.get_ident()} else "another thread"


@belief("a hook may be registered after the first backward pass", "works", ATTACHMENT)
def ddp_hook_late() -> str:
    model = _settled()
    return outcome(lambda: (model.register_comm_hook(None, _hook()), _pass(model)))


@belief(
    "a hook with the right annotations is accepted under `from __future__ import annotations`",
    "works",
    ATTACHMENT,
)
def ddp_hook_annotated() -> str:
    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return _hook()(state, bucket)

    return outcome(lambda: DistributedDataParallel(_layers()).register_comm_hook(None, hook))


@belief("after a hook raised once, the next pass works", "works", ATTACHMENT)
def ddp_hook_raises() -> str:
    raised: list[int] = []

    def note(_: object) -> None:
        if not raised:
            raised.append(1)
            raise ValueError("once")

    model = DistributedDataParallel(_layers())
    model.register_comm_hook(None, _hook(note))
    first = outcome(lambda: _pass(model))
    second = outcome(lambda: _pass(model))
    return second if first != "works" else "the hook's exception is lost"


@belief("backward raises a hook's exception with its own type", "ValueError", ATTACHMENT)
def ddp_hook_exception() -> str:
    def note(_: object) -> None:
        raise ValueError("once")

    model = DistributedDataParallel(_layers())
    model.register_comm_hook(None, _hook(note))
    return outcome(lambda: _pass(model)).partition(":")[0]


@belief(
    "once PowerSGD's hook compresses, it issues two all-reduces per bucket",
    "2 per bucket",
    "commprof/recordings/profiler_host.py",
)
def ddp_powersgd() -> str:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    model = DistributedDataParallel(_layers(1))
    state = power.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, power.powerSGD_hook)
    for _ in range(4):
        _pass(model)
    before = dist.group.WORLD._get_sequence_number_for_group()
    _pass(model)
    return f"{dist.group.WORLD._get_sequence_number_for_group() - before} per bucket"


@belief("the fp16 hook leaves gradients in fp32", "torch.float32")
def ddp_fp16_hook() -> str:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model = DistributedDataParallel(_layers())
    model.register_comm_hook(None, fp16_compress_hook)
    _pass(model)
    return str(next(model.parameters()).grad.dtype)


@belief("parameters of two types in one model share no bucket", "2 allreduce_", BUCKETS)
def ddp_two_types() -> str:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False).double()

        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            return self.two(self.one(tensor).double())

    model = DistributedDataParallel(Mixed())
    for _ in range(3):
        _pass(model, 8)
    return operators(lambda: _pass(model, 8))


@belief(
    "if a parameter is frozen after DDP was made, the next forward raises an error",
    "an error",
    THEORY,
)
def ddp_frozen_later() -> str:
    model = _settled()
    next(model.parameters()).requires_grad_(False)
    told = outcome(lambda: (_pass(model), _pass(model)))
    return "an error" if told != "works" else "trains on"


@belief(
    "without find_unused_parameters, a pass that leaves a parameter unused raises", "the same pass"
)
def ddp_unused() -> str:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            return self.used(tensor)

    model = DistributedDataParallel(Part())
    for number in range(3):
        if outcome(lambda: _pass(model, 8)) != "works":
            return "the same pass" if number == 0 else "the next forward"
    return "none"


@belief(
    "without find_unused_parameters, a pass with an unused parameter averages the used gradients",
    "averaged",
)
def ddp_unused_averages() -> str:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            return self.used(tensor)

    model = DistributedDataParallel(Part())
    tensor = torch.full((2, 8), float(dist.get_rank()))
    model(tensor).sum().backward()
    value = model.module.used.weight.grad[0, 0].item()
    return "averaged" if value == 1.0 else "each rank has its own"


@belief("SyncBatchNorm works over gloo on CPUs", "works")
def ddp_sync_batch_norm() -> str:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(8)))
    return outcome(lambda: DistributedDataParallel(model)(torch.randn(4, 8)).sum().backward())


@belief("after a pass with bucket views, each gradient shares memory with a bucket", "shares")
def ddp_views() -> str:
    model = _settled(gradient_as_bucket_view=True)
    parameters = list(model.parameters())
    storages = {parameter.grad.untyped_storage().nbytes() for parameter in parameters}
    return (
        "shares"
        if all(p.grad._base is not None or p.grad._is_view() for p in parameters)
        else f"{storages}"
    )


@belief("buffers are broadcast in each forward in training mode", "broadcast_", THEORY)
def ddp_buffers() -> str:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
    for _ in range(3):
        _pass(model, 8)
    tensor = torch.ones(2, 8)
    return operators(lambda: model(tensor))


@belief("in the first no_sync pass after an update buffers are not broadcast", "nothing", THEORY)
def ddp_buffers_in_no_sync() -> str:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
    for _ in range(3):
        _pass(model, 8)
    with model.no_sync():
        return operators(lambda: model(torch.ones(2, 8)))


@belief("making a DDP model with broadcast_buffers=False gives no warning", "silent")
def ddp_broadcast_buffers_warns() -> str:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        DistributedDataParallel(_layers(), broadcast_buffers=False)
    return (
        "silent"
        if not warned
        else f"{type(warned[0].message).__name__}: {str(warned[0].message)[:40]}"
    )


@belief("a sparse gradient of an embedding is exchanged in one all-reduce", "allreduce_", BUCKETS)
def ddp_sparse() -> str:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(16, 4, sparse=True)

        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            return self.table(tensor)

    model = DistributedDataParallel(Model())
    indices = torch.tensor([1, 2])
    for _ in range(3):
        model(indices).sum().backward()
    return operators(lambda: model(indices).sum().backward())


@belief(
    "a reentrant checkpoint in a DDP model does not change the number of all-reduces",
    "4 allreduce_",
    BUCKETS,
)
def ddp_reentrant_checkpoint() -> str:
    from torch.utils.checkpoint import checkpoint

    model = _layers()

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, tensor.requires_grad_(), use_reentrant=True)

    ddp = DistributedDataParallel(Checkpointed(), bucket_cap_mb=0.01)
    for _ in range(3):
        _pass(ddp)
    return operators(lambda: _pass(ddp))


@belief(
    "two reentrant checkpoints in a DDP model do not change the number of all-reduces",
    "4 allreduce_",
    BUCKETS,
)
def ddp_two_reentrant_checkpoints() -> str:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = _layers(2), _layers(2)

        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            middle = checkpoint(self.one, tensor.requires_grad_(), use_reentrant=True)
            return checkpoint(self.two, middle, use_reentrant=True)

    ddp = DistributedDataParallel(Checkpointed(), bucket_cap_mb=0.01)
    for _ in range(3):
        _pass(ddp)
    return operators(lambda: _pass(ddp))


def _large() -> DistributedDataParallel:
    """Returns a model of four layers of 1 MiB; each layer has a bucket, even if compiled."""
    return DistributedDataParallel(_layers(4, 512), bucket_cap_mb=1)


@belief("a compiled DDP model exchanges as often as an eager one", "4 allreduce_", BUCKETS)
def ddp_compiled() -> str:
    model = torch.compile(_large(), backend="eager")
    for _ in range(3):
        _pass(model, 512)
    return operators(lambda: _pass(model, 512))


@belief("torch.compile takes any bucket_cap_mb that DDP takes", "works", BUCKETS)
def ddp_compiled_small_cap() -> str:
    model = DistributedDataParallel(_layers(), bucket_cap_mb=0.01)
    return outcome(lambda: _pass(torch.compile(model, backend="eager"))).partition(":")[0]


@belief(
    "a DDP model around a compiled module takes any bucket_cap_mb, because DDP is not compiled",
    "works",
    BUCKETS,
)
def ddp_around_compiled_small_cap() -> str:
    inner = torch.compile(_layers(), backend="eager")
    model = DistributedDataParallel(inner, bucket_cap_mb=0.01)
    return outcome(lambda: _pass(model)).partition(":")[0]


@belief("a DDP model around a compiled module exchanges like an eager one", "4 allreduce_", BUCKETS)
def ddp_around_compiled() -> str:
    inner = torch.compile(_layers(4, 512), backend="aot_eager")
    model = DistributedDataParallel(inner, bucket_cap_mb=1)
    for _ in range(3):
        _pass(model, 512)
    return operators(lambda: _pass(model, 512))


@belief("no_sync also works in a compiled DDP model", "nothing", BUCKETS)
def ddp_compiled_no_sync() -> str:
    inner = _large()
    model = torch.compile(inner, backend="aot_eager")
    for _ in range(3):
        _pass(model, 512)

    def call() -> None:
        with inner.no_sync():
            _pass(model, 512)

    return operators(call)


@belief("a communication hook runs for each bucket of a compiled DDP model", "4", HOOK)
def ddp_compiled_hook() -> str:
    seen: list[int] = []
    inner = _large()
    inner.register_comm_hook(None, _hook(lambda bucket: seen.append(bucket.index())))
    model = torch.compile(inner, backend="aot_eager")
    for _ in range(3):
        _pass(model, 512)
    seen.clear()
    _pass(model, 512)
    return str(len(seen))


@belief("clip_grad_norm_ after DDP exchanges nothing", "nothing", THEORY)
def ddp_clips() -> str:
    model = _settled()
    return operators(lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0))
