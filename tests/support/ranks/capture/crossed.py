"""Runs jobs in which several parts of torch meet, without and with recording: DIRECTORY JOB..."""

from __future__ import annotations

import hashlib
import json
import pickle
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import commprof
from commprof import _native

STEPS, PASSES = 3, 2


def _digest(tensors: Iterable[torch.Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        found.update(whole.detach().numpy().tobytes())
    return found.hexdigest()


def _layers(width: int) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(2)))


def _train(model: Any, width: int, synchronise: Callable[[bool], Any]) -> str:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(PASSES):
            torch.manual_seed(100 * step + 10 * number + dist.get_rank())
            with synchronise(number == PASSES - 1):
                model(torch.randn(4, width)).square().mean().backward()
        optimizer.step()
    return _digest(model.parameters())


def compiled_ddp_hook_no_sync(_: Path) -> str:
    def hook(_: Any, bucket: Any) -> Any:
        work = dist.all_reduce(bucket.buffer().mul_(0.5), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    hook.__annotations__.clear()
    torch._dynamo.reset()
    ddp = DistributedDataParallel(_layers(512), bucket_cap_mb=1)
    ddp.register_comm_hook(None, hook)
    model = torch.compile(ddp, backend="aot_eager")
    return _train(model, 512, lambda last: nullcontext() if last else ddp.no_sync())


def sharded_tensor_parallel_accumulated(_: Path) -> str:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model: Any = _layers(64)
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])

    def synchronise(last: bool) -> Any:
        model.set_requires_gradient_sync(last)
        return nullcontext()

    return _train(model, 64, synchronise)


def flat_sharding_accumulated(_: Path) -> str:
    model: Any = FullyShardedDataParallel(
        _layers(64),
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )
    return _train(model, 64, lambda last: nullcontext() if last else model.no_sync())


def three_recorders(_: Path) -> str:
    def entries() -> int:
        names = pickle.loads(torch._C._distributed_c10d._dump_fr_trace())["entries"]
        return sum(entry["profiling_name"] == "gloo:all_reduce" for entry in names)

    before, tensor = entries(), torch.ones(4)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        for _ in range(10):
            dist.all_reduce(tensor)
    ranges = sum(event.name == "gloo:all_reduce" for event in recorded.events())
    added = entries() - before
    assert ranges == 10, ranges
    # Flight Recorder is off by default before torch 2.13, and has room for 2,000 entries.
    assert added in (0, 10), added
    return _digest([tensor])


def functional_results(_: Path) -> str:
    group = dist.group.WORLD
    leaf = torch.full((4, 4), 1.0 + dist.get_rank(), requires_grad=True)
    used = functional.all_reduce(leaf.detach(), "sum", group) * 2
    functional.all_reduce(leaf.detach(), "sum", group)  # nobody waits for this result
    functional.all_gather_tensor_autograd(leaf * 1, 0, group).square().sum().backward()
    assert leaf.grad is not None
    return _digest([used, leaf.grad])


def groups_beside_checkpoints(folder: Path) -> str:
    groups = [dist.new_group([0, 1]) for _ in range(8)]
    saving = dist.new_group([0, 1])
    tensors = [torch.full((64,), float(number)) for number in range(8)]
    for turn in range(3):
        target = {"weight": torch.full((8,), float(turn))}
        saved = checkpoint.async_save(
            target, checkpoint_id=folder / f"checkpoint_{turn}", process_group=saving
        )
        for group, tensor in zip(groups, tensors, strict=True):
            dist.all_reduce(tensor, group=group)
        saved.result()
    dist.barrier(group=saving)
    read = {"weight": torch.zeros(8)}
    checkpoint.load(read, checkpoint_id=folder / "checkpoint_2", process_group=saving)
    return _digest([*tensors, read["weight"]])


def stray_forward_undoes_no_sync(_: Path) -> str:
    """After a forward pass without a backward pass, DDP exchanges gradients in spite of no_sync.

    ``findings/ddp_forward_without_backward_undoes_no_sync.sh`` shows the same without commprof.
    """
    model = DistributedDataParallel(_layers(64))
    model(torch.ones(4, 64)).square().mean().backward()
    model(torch.ones(4, 64))
    with model.no_sync():
        model(torch.ones(4, 64)).square().mean().backward()
    return _digest(parameter.grad for parameter in model.parameters() if parameter.grad is not None)


JOBS = {
    job.__name__: job
    for job in (
        compiled_ddp_hook_no_sync,
        sharded_tensor_parallel_accumulated,
        flat_sharding_accumulated,
        three_recorders,
        functional_results,
        groups_beside_checkpoints,
        stray_forward_undoes_no_sync,
    )
}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    root, *names = sys.argv[1:]
    told = {}
    for name in names:
        folder = Path(root) / name
        if _native.native is not None:
            _native.native.uninstall_observer()  # an earlier job installed the observer
        plain = JOBS[name](folder / "plain")
        with commprof.profile(folder):
            recorded = JOBS[name](folder / "recorded")
        told[name] = {"plain": plain, "recorded": recorded}
    print(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
