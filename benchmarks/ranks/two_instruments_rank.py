"""Runs one rank of two_instruments.py, which both commprof and torch.profiler record."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._profiler import _ExperimentalConfig
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

import commprof

STEPS = 30
#: Delay of the last rank in each step of ``alone``.
HELD_UP_S = 0.02
#: Duration of an operator that needs no core.
REST_S = 0.005
#: Workloads in which threads other than the profiler's thread issue collectives.
ALL_THREADS = ("powersgd",)
#: Width of the matrices that are multiplied during collectives, by backend.
MATRIX = {"gloo": 512, "nccl": 4096}


@torch.library.custom_op("two_instruments::rest", mutates_args=("values",))
def _rest(values: torch.Tensor) -> None:
    time.sleep(REST_S)


def rest(values: torch.Tensor) -> None:
    """Runs an operator that takes time, but no core, like an operator on a GPU.

    From 2.14 on, torch.profiler records no event if ``_rest`` itself is called.
    """
    torch.ops.two_instruments.rest(values)


class Rested(torch.autograd.Function):
    """Calls ``rest`` in forward and in backward."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        rest(values.detach())
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        rest(gradients[0])
        return gradients[0]


class Rest(nn.Module):
    """A layer that takes time, but no core."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        rested: torch.Tensor = Rested.apply(values)
        return rested


def alone(rank: int, rests: bool) -> Callable[[int], None]:
    """Runs all-reduces without other work; the last rank is late."""
    values = torch.ones(1 << (14 if rests else 20))

    def step(number: int) -> None:
        if rank == dist.get_world_size() - 1:
            time.sleep(HELD_UP_S)
        for _ in range(3):
            dist.all_reduce(values)
        values.fill_(1.0)
        time.sleep(0.005)

    return step


def beside(rank: int, rests: bool) -> Callable[[int], None]:
    """Runs asynchronous collectives beside other work."""
    elements = 1 << (14 if rests else 20)
    values, part = torch.ones(elements), elements // 4
    parts = torch.empty(dist.get_world_size() * part)
    width = MATRIX[dist.get_backend()]
    matrix, product = torch.ones(width, width), torch.empty(width, width)

    def step(number: int) -> None:
        first = dist.all_reduce(values, async_op=True)
        second = dist.all_gather_into_tensor(parts, values[:part].clone(), async_op=True)
        for _ in range(1 if rank else 4):
            rest(product) if rests else torch.mm(matrix, matrix, out=product)
        first.wait()
        second.wait()
        dist.broadcast(values, src=0)
        values.fill_(1.0)

    return step


def ddp(rank: int, rests: bool) -> Callable[[int], None]:
    """Trains under DDP with several buckets."""
    torch.manual_seed(1)
    on_gpu = dist.get_backend() == "nccl"
    width, between = (64, Rest) if rests else (2048 if on_gpu else 512, nn.ReLU)
    layers = [nn.Sequential(nn.Linear(width, width), between()) for _ in range(6)]
    bucket_mb = 2 * width**2 / 512**2
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=bucket_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.ones(4096 if on_gpu else 64, width)

    def step(number: int) -> None:
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()

    return step


def fsdp2(rank: int, rests: bool) -> Callable[[int], None]:
    """Trains under FSDP2, which waits in hooks of forward and backward."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(1)
    width, between = (64, Rest) if rests else (1024, nn.ReLU)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), between()) for _ in range(6)])
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.ones(64, width)

    def step(number: int) -> None:
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()

    return step


def tensor_parallel(rank: int, rests: bool) -> Callable[[int], None]:
    """Trains with tensor parallelism, which uses functional collectives."""
    from torch.distributed.tensor import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(1)
    width, between = (64, Rest) if rests else (512, nn.ReLU)
    layers = [
        nn.Sequential(nn.Linear(width, 2 * width), between(), nn.Linear(2 * width, width))
        for _ in range(4)
    ]
    halves = (("0", ColwiseParallel), ("2", RowwiseParallel))
    plan = {f"{layer}.{half}": style() for layer in range(4) for half, style in halves}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = parallelize_module(nn.Sequential(*layers), mesh, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    data = torch.ones(512, width, requires_grad=True)

    def step(number: int) -> None:
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()

    return step


def pipeline_data(rank: int, rests: bool) -> Callable[[int], None]:
    """Trains a pipeline of two stages; the ranks of a stage sum their gradients."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(1)
    stages = 2
    mesh = init_device_mesh(
        "cpu", (dist.get_world_size() // stages, stages), mesh_dim_names=("dp", "pp")
    )
    data_group, pipeline = mesh["dp"].get_group(), mesh["pp"]
    number_of_stage = pipeline.get_local_rank()
    width, between = (64, Rest) if rests else (512, nn.ReLU)
    model = nn.Sequential(nn.Linear(width, width), between(), nn.Linear(width, width))
    stage = PipelineStage(
        model, number_of_stage, stages, torch.device("cpu"), group=pipeline.get_group()
    )
    schedule_of_stage = Schedule1F1B(
        stage, 4, loss_fn=lambda output, target: ((output - target) ** 2).mean()
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.ones(64, width)

    def step(number: int) -> None:
        if number_of_stage == 0:
            schedule_of_stage.step(data)
        else:
            schedule_of_stage.step(target=data)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=data_group)
        optimizer.step()
        optimizer.zero_grad()

    return step


def powersgd(rank: int, rests: bool) -> Callable[[int], None]:
    """Trains under DDP with torch's PowerSGD, whose hook issues collectives on gloo's threads."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hooks

    torch.manual_seed(1)
    width, between = (64, Rest) if rests else (512, nn.ReLU)
    layers = [nn.Sequential(nn.Linear(width, width), between()) for _ in range(6)]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=1000)
    state = hooks.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
    model.register_comm_hook(state, hooks.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = torch.ones(64, width)

    def step(number: int) -> None:
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()

    return step


WORKLOADS = {
    **{"alone": alone, "beside": beside, "ddp": ddp, "fsdp2": fsdp2},
    **{"tensor_parallel": tensor_parallel, "pipeline_data": pipeline_data, "powersgd": powersgd},
}


def without_core_ns() -> int:
    """Returns how long this thread has waited for a core, by the kernel's count."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1])


def use_one_gpu() -> None:
    """Makes the first GPU the device of all tensors; all ranks share this GPU.

    NCCL refuses two ranks of one host on one GPU. So each rank gets another host id, and NCCL
    exchanges data through sockets.
    """
    os.environ |= {"NCCL_HOSTID": os.environ["RANK"], "NCCL_SOCKET_IFNAME": "lo"}
    torch.set_default_device("cuda:0")


def main(workload: str, directory: Path, rests: bool, backend: str) -> list[list[int]]:
    """Runs a workload under both recorders; returns each rank's ns without a core, by step."""
    torch.set_num_threads(1)
    activities = [ProfilerActivity.CPU]
    if backend == "nccl":
        use_one_gpu()
        activities.append(ProfilerActivity.CUDA)
    dist.init_process_group(backend)
    rank = dist.get_rank()
    step = WORKLOADS[workload](rank, rests)
    for number in range(4):
        step(number)
    dist.barrier()
    (directory / "torch").mkdir(exist_ok=True)
    trace = directory / "torch" / f"rank{rank}.json.gz"
    counts = []
    with (
        commprof.profile(directory / "run") as ours,
        profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=0, active=STEPS, repeat=1),
            on_trace_ready=lambda done: done.export_chrome_trace(str(trace)),
            record_shapes=True,
            experimental_config=_ExperimentalConfig(profile_all_threads=workload in ALL_THREADS),
        ) as theirs,
    ):
        for number in range(STEPS):
            counts.append(without_core_ns())
            step(number)
            if backend == "nccl":
                torch.cuda.synchronize()
            ours.step()
            theirs.step()
        counts.append(without_core_ns())
    without_core = [after - before for before, after in itertools.pairwise(counts)]
    of_ranks: list[list[int]] = [[]] * dist.get_world_size()
    dist.all_gather_object(of_ranks, without_core)
    dist.destroy_process_group()
    return of_ranks


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(main(**{**asked, "directory": Path(asked["directory"])})))
