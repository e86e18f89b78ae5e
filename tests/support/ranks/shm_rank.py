"""Usage: ``python -m tests.support.ranks.shm_rank SCENARIO [HOSTS]``.

HOSTS names the host of each rank, separated by commas, so that one machine stands for several.
"""

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

import commprof
import commprof.tune.backend  # this import registers the backend "commprof"
from commprof.tune import compressors

TIMEOUT_S = 3
_LONG_TIMEOUT_S = 60
SHM = "/dev/shm/commprof-shm-"


def collectives() -> None:
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
    dist.all_gather_object(gathered, {"rank": rank})
    assert gathered == [{"rank": other} for other in range(size)]
    dist.barrier()
    print("equal")


def training() -> None:
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
    # Two ranks can be summed in one order only, so their parameters are equal bit by bit.
    same = torch.equal(*ends) if dist.get_world_size() == 2 else torch.allclose(*ends, atol=1e-6)
    assert same
    print("same parameters")


#: In each pair, the last rank passes the second tensor, and all other ranks pass the first tensor.
DISAGREEMENTS = (
    (torch.ones(3), torch.ones(4)),
    (torch.ones(1_000_000), torch.ones(1_500_000)),
    (torch.ones(2_000_000), torch.ones(1_000_000, dtype=torch.float64)),
    (torch.ones(0), torch.ones(5_000)),
)


def disagreement() -> None:
    last = dist.get_rank() == dist.get_world_size() - 1
    for tensors in DISAGREEMENTS:
        # Between hosts the error breaks a group, so each case has its own group.
        group = dist.new_group(backend="commprof", timeout=timedelta(seconds=30))
        begin = time.monotonic()
        try:
            dist.all_reduce(tensors[last], group=group)
        except RuntimeError as error:
            assert time.monotonic() - begin < 15
            print(error)
    sys.stdout.flush()
    os._exit(0)  # the ranks cannot destroy a broken group together


def lost() -> None:
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
        os._exit(0)


def caller_state() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    leaf = torch.full((2, 3, 4, 5), float(rank)).to(memory_format=torch.channels_last)
    leaf.requires_grad_()
    dist.broadcast(leaf, size - 1)
    assert leaf.is_leaf
    assert leaf.tolist() == torch.full((2, 3, 4, 5), size - 1.0).tolist()
    mean = (size - 1) / 2
    with torch.inference_mode():
        for values in (torch.full((5_000,), float(rank)), torch.full((50, 2), float(rank)).t()):
            works = [dist.all_reduce(values, op=dist.ReduceOp.AVG, async_op=True) for _ in "ab"]
            assert all(work.wait() for work in works)
            assert values.allclose(torch.full_like(values, mean))
    with torch.no_grad():
        if rank == 0:
            time.sleep(0.2)  # on the other ranks, the callback then runs in the backend's thread
        future = dist.all_reduce(torch.ones(9), async_op=True).get_future()
        modes = future.then(lambda _: torch.is_grad_enabled())
    assert modes.wait() is False
    print("as from a kernel")


def failing() -> None:
    cannot_copy, cannot_return = torch.zeros(1).expand(1 << 60), torch.zeros(1).expand(3)
    last = dist.get_rank() == dist.get_world_size() - 1
    for tensor in (cannot_copy, cannot_return):
        group = dist.new_group(backend="commprof", timeout=timedelta(seconds=30))
        begin = time.monotonic()
        for _ in range(2):  # the second failure must not be confused with the first
            ours = tensor if last else torch.ones(3)
            try:
                dist.all_reduce(ours, group=group)
                assert not last
                assert tensor is cannot_return
                assert ours.tolist() == [dist.get_world_size() - 1] * 3
            except RuntimeError as error:
                print(error)
            tensor = tensor if tensor is cannot_return else torch.ones(3)
        assert time.monotonic() - begin < 15
    sys.stdout.flush()
    os._exit(0)


def barrier() -> None:
    for dtype in (torch.uint8, torch.float32):  # gloo takes uint8, shared memory takes float32
        for _ in range(3):
            work = dist.all_reduce(torch.ones(10_000_000, dtype=dtype), async_op=True)
            dist.barrier()
            assert work.is_completed(), dtype
    dist.barrier(async_op=True).wait()
    print("complete")


def ending() -> None:
    last = dist.get_rank() == dist.get_world_size() - 1
    for end in ("shutdown", "abort", "timeout"):
        group = dist.new_group(backend="commprof", timeout=timedelta(seconds=60))
        dist.all_reduce(torch.ones(3), group=group)
        group.set_timeout(timedelta(seconds=1 if end == "timeout" else 60))
        begin = time.monotonic()
        if last:
            {"shutdown": group.shutdown, "abort": group.abort, "timeout": int}[end]()
        else:
            try:
                dist.all_reduce(torch.ones(3), group=group)
            except RuntimeError as error:
                assert time.monotonic() - begin < 10
                print(end, error, flush=True)
        dist.barrier()
    sys.stdout.flush()
    os._exit(0)


#: Largest relative difference between a compressor's mean and the plain mean.
HOOKS = {
    "hierarchical": 1e-6,
    "none": 1e-6,
    "fp16:hierarchical=1": 1e-3,
    "int8:hierarchical=1": 2e-2,
    "topk:ratio=1,hierarchical=1": 1e-2,
    "powersgd:rank=16,hierarchical=1": 2.0,
}


def hooks() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(rank)
    inputs = [torch.randn(16, 48, generator=generator) for _ in range(3)]
    plain = _gradients(None, inputs)
    for name, tolerance in HOOKS.items():
        ours = _gradients(name, inputs)
        error = float((ours - plain).norm() / plain.norm())
        assert error <= tolerance, (name, error)
        everyone = [torch.empty_like(ours) for _ in range(size)]
        dist.all_gather(everyone, ours)
        assert all(torch.equal(ours, other) for other in everyone), name
    print("near the mean")


def _gradients(hook: str | None, inputs: list[torch.Tensor]) -> torch.Tensor:
    torch.manual_seed(0)
    layers = [nn.Linear(48, 48) for _ in range(6)]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.02)
    if hook is not None:
        commprof.attach(model, hook=compressors.parse(hook))
    steps = []
    for batch in inputs:
        model.zero_grad()
        model(batch).square().mean().backward()
        steps.append(
            torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        )
    return torch.cat(steps)


def kind() -> None:
    print(type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__)
    dist.all_reduce(torch.ones(10))


def large() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in (1, 1000, 100_003, 3_000_001):
        data = torch.arange(count).remainder(1000).float() * (rank + 1)
        works = [dist.all_reduce(data, async_op=True) for _ in range(2)]
        assert all(work.wait() for work in works)
        factor = size * size * (size + 1) // 2
        assert torch.equal(data, torch.arange(count).remainder(1000).float() * factor)
        counts = torch.full((count,), 6 * rank, dtype=torch.int64)
        dist.all_reduce(counts, op=dist.ReduceOp.AVG)
        assert counts.unique().tolist() == [3 * (size - 1)]
    print("as on paper")


def main() -> None:
    scenario = sys.argv[1]
    hosts = sys.argv[2].split(",") if len(sys.argv) > 2 else []
    if hosts:
        os.environ["COMMPROF_HOST"] = hosts[int(os.environ["RANK"])]
    if scenario == "kind" and not hosts:
        commprof.tune.backend.SLOT_BYTES = 1 << 44  # no /dev/shm is so large
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        timeout_s = TIMEOUT_S if scenario == "lost" else _LONG_TIMEOUT_S
        port = int(os.environ["MASTER_PORT"])
        patience = timedelta(seconds=_LONG_TIMEOUT_S)
        store = dist.TCPStore("localhost", port, size, rank == 0, timeout=patience)
        dist.init_process_group(
            "cpu:commprof",
            store=store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout_s),
        )
        print(*(warning.message for warning in caught), sep="\n")
    {
        "collectives": collectives,
        "training": training,
        "disagreement": disagreement,
        "lost": lost,
        "kind": kind,
        "large": large,
        "hooks": hooks,
        "caller_state": caller_state,
        "failing": failing,
        "barrier": barrier,
        "ending": ending,
    }[scenario]()
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if SHM in line]
    assert all(line.endswith("(deleted)") for line in mapped), mapped
    assert bool(mapped) != (scenario == "kind")
    dist.destroy_process_group()
    time.sleep(0.05)  # torch 2.13's gloo threads may abort a process that ends at once


if __name__ == "__main__":
    main()
