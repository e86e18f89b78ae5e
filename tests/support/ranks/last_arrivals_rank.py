"""Records in always-on mode and in full mode at the same time."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import commprof
from commprof import _native
from commprof.trace.schema import MODES

STEPS = 30


def with_roots(rank: int, step: int) -> None:
    size, value = dist.get_world_size(), torch.zeros(8)
    root = step % size
    time.sleep(0.001 * ((rank - root) % size == 0) + 0.002 * ((rank - root) % size == 1))
    dist.broadcast(value, root)
    time.sleep(0.001 * (rank == root))
    dist.scatter(value, [torch.zeros(8)] * size if rank == root else None, src=root)
    dist.gather(value, [torch.zeros(8)] * size if rank == root else None, dst=root)
    dist.reduce(value, root)
    if rank == root:
        dist.send(value, (rank + 1) % size)
    elif rank == (root + 1) % size:
        time.sleep(0.001)
        dist.recv(value, root)


def main() -> None:
    directory, skipped = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else -1
    linger_s = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pair = dist.new_group([0, 2])
    torch.manual_seed(0)
    ddp = DistributedDataParallel(
        torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(6))), bucket_cap_mb=0.1
    )
    assert _native.native is not None
    capture = commprof.profile(directory, mode="always-on") if rank != skipped else None
    with capture or nullcontext():
        if capture is not None:
            _native.native.set_mode(MODES.index("full"))
        for step in range(STEPS):
            time.sleep(0.002 * ((step + rank) % 3))
            ddp(torch.randn(8, 128)).square().mean().backward()
            if rank in (0, 2):
                work = dist.all_reduce(torch.zeros(1000), group=pair, async_op=True)
                time.sleep(0.001 * rank)
                work.wait()
            with_roots(rank, step)
            dist.all_reduce(torch.zeros(1))
            if capture is not None:
                capture.step()
        time.sleep(linger_s)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.05)  # torch 2.13's gloo threads may abort a process that ends at once


if __name__ == "__main__":
    main()
