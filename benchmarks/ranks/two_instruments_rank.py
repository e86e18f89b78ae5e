"""One rank under commprof and torch.profiler at once, for two_instruments.py."""

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
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

import commprof

STEPS = 30
#: Delay of the last rank of ``alone`` in each step.
HELD_UP_S = 0.02
#: Duration of an operator that needs no core.
REST_S = 0.005
#: Size of the matrices that are multiplied during collectives, by backend.
MATRIX = {"gloo": 512, "nccl": 4096}


@torch.library.custom_op("two_instruments::rest", mutates_args=("values",))
def rest(values: torch.Tensor) -> None:
    """Operator that takes time without a core, like one on a GPU."""
    time.sleep(REST_S)


class Rested(torch.autograd.Function):
    """Function that rests in forward and in backward."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        """Returns the same values."""
        rest(values.detach())
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        """Returns the same gradients."""
        rest(gradients[0])
        return gradients[0]


class Rest(nn.Module):
    """A layer that needs no core."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Returns the same values."""
        rested: torch.Tensor = Rested.apply(values)
        return rested


def alone(rank: int, rests: bool) -> Callable[[int], None]:
    """Runs all-reduces of one size, with no other work; the last rank comes late."""
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
    """Runs asynchronous collectives of several kinds, and waits for them after other work."""
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


WORKLOADS = {"alone": alone, "beside": beside, "ddp": ddp}


def without_core_ns() -> int:
    """Returns the time that this thread was runnable without a core, as counted by the kernel."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1])


def use_one_gpu() -> None:
    """Makes the first GPU the device of all tensors, although another rank uses it too.

    NCCL refuses two ranks of one host on one GPU. With a host identity of its own, each rank is
    taken for one of another host, and they exchange data through sockets.
    """
    os.environ |= {"NCCL_HOSTID": os.environ["RANK"], "NCCL_SOCKET_IFNAME": "lo"}
    torch.set_default_device("cuda:0")


def main(workload: str, directory: Path, rests: bool, backend: str) -> list[list[int]]:
    """Runs a workload under both recorders; returns time without a core per rank and step.

    Some steps run before both recorders begin, so that both see the same steps.
    """
    torch.set_num_threads(1)
    activities = [ProfilerActivity.CPU]
    if backend == "nccl":
        use_one_gpu()
        activities.append(ProfilerActivity.CUDA)
    dist.init_process_group(backend)
    rank = dist.get_rank()
    step = WORKLOADS[workload](rank, rests)
    for number in range(3):
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
