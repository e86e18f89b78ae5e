"""One rank of the backend's tests: ``python -m tests.support.shm_rank SCENARIO``."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import commprof.backend  # noqa: F401  registers "commprof"

TIMEOUT_S = 3
SHM = "/dev/shm/commprof-shm-"


def collectives() -> None:
    """Every operation against gloo, in all element types, also of tensors not in order."""
    gloo, rank, size = dist.new_group(backend="gloo"), dist.get_rank(), dist.get_world_size()
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64):
        for operation in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN):
            for shape in ((0,), (1,), (3, 5), (700, 1000)):
                own = torch.arange(torch.Size(shape).numel()).remainder(7).reshape(shape) + rank
                ours, theirs = own.to(dtype).t(), own.to(dtype).t().contiguous()
                dist.all_reduce(ours, op=operation)
                dist.all_reduce(theirs, op=operation, group=gloo)
                assert torch.equal(ours, theirs), (dtype, operation, shape)
    part = torch.full((3, 2), float(rank))
    whole = torch.empty(3 * size, 2)
    dist.all_gather_into_tensor(whole, part)
    assert whole[::3, 0].tolist() == list(range(size))
    parts = [torch.empty(3, 2) for _ in range(size)]
    dist.all_gather(parts, part)
    assert [float(x[0, 0]) for x in parts] == list(range(size))
    share = torch.empty(1, 2)
    dist.reduce_scatter_tensor(share, torch.ones(size, 2) * (rank + 1))
    assert share.tolist() == [[size * (size + 1) / 2] * 2]
    dist.broadcast(part, size - 1)
    assert float(part[0, 0]) == size - 1
    works = [dist.all_reduce(torch.ones(50_000), async_op=True) for _ in range(20)]
    assert all(work.wait() for work in works)
    gathered: list[object] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank})  # uint8 and sizes: partly through gloo
    assert gathered == [{"rank": other} for other in range(size)]
    dist.barrier()
    print("equal")


def training() -> None:
    """DDP over shared memory ends with the parameters that DDP over gloo ends with."""
    ends = []
    for group in (dist.group.WORLD, dist.new_group(backend="gloo")):
        torch.manual_seed(0)
        layers = [nn.Linear(64, 64) for _ in range(4)]
        model = DistributedDataParallel(
            nn.Sequential(*layers), process_group=group, bucket_cap_mb=0.02
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        generator = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(8):
            optimizer.zero_grad()
            model(torch.randn(16, 64, generator=generator)).square().mean().backward()
            optimizer.step()
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    # Two ranks are summed in one order only.
    same = torch.equal(*ends) if dist.get_world_size() == 2 else torch.allclose(*ends, atol=1e-6)
    assert same
    print("same parameters")


def disagreement() -> None:
    """Ranks whose tensors differ in length are told so, both."""
    try:
        dist.all_reduce(torch.ones(3 + dist.get_rank()))
    except RuntimeError as error:
        print(error)


def lost() -> None:
    """The last rank ends, or stops, before a collective; the others say who is missing."""
    dist.all_reduce(torch.ones(10))
    if dist.get_rank() == dist.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        dist.all_reduce(torch.ones(1_000_000))
    except RuntimeError as error:
        assert time.monotonic() - begin < TIMEOUT_S + 2
        print(error)
        sys.stdout.flush()
        os._exit(0)  # the group is broken: its ends cannot meet


def hosts() -> None:
    """Ranks that name different hosts get gloo, and a warning says so."""
    print(type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__)
    dist.all_reduce(torch.ones(10))


def main() -> None:
    """Runs one scenario in a group of the backend."""
    scenario = sys.argv[1]
    if scenario == "hosts":
        os.environ["COMMPROF_HOST"] = os.environ["RANK"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist.init_process_group("cpu:commprof", timeout=timedelta(seconds=TIMEOUT_S))
        print(*(warning.message for warning in caught), sep="\n")
    {
        "collectives": collectives,
        "training": training,
        "disagreement": disagreement,
        "lost": lost,
        "hosts": hosts,
    }[scenario]()
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if SHM in line]
    assert all(line.endswith("(deleted)") for line in mapped), mapped
    assert bool(mapped) == (scenario != "hosts")
    dist.destroy_process_group()
    time.sleep(0.05)  # torch 2.13's gloo threads may abort a process that ends at once


if __name__ == "__main__":
    main()
