from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

import commprof

STEPS = 6
LATE_S = 0.03
ROOTED_LATE_S = 0.15


def known(rank: int) -> None:
    if rank == 0:
        time.sleep(LATE_S)
        dist.send(torch.ones(1000), 1)
    else:
        dist.recv(torch.ones(1000), 0)


def any_source(rank: int) -> None:
    known(rank)
    if rank == 0:
        time.sleep(LATE_S)
        dist.send(torch.ones(10), 1)
    else:
        dist.recv(torch.ones(10))


def rooted(rank: int) -> list[Callable[[], object]]:
    size = dist.get_world_size()
    value, parts = torch.ones(1000), [torch.ones(1000) for _ in range(size)]
    of_root = parts if rank == 1 else None

    def late_to(operation: Callable[[], object], late: int) -> None:
        dist.barrier()
        if rank == late:
            time.sleep(ROOTED_LATE_S)
        operation()

    operations: list[Callable[[], object]] = [
        lambda: dist.broadcast(value, 0),
        lambda: dist.broadcast(value, 1),
        lambda: dist.gather(value, of_root, 1),
        lambda: dist.scatter(value, of_root, 1),
        lambda: dist.reduce(value, 1),
    ]
    return [partial(late_to, each, late) for each in operations for late in range(size)]


def main() -> None:
    dist.init_process_group("gloo")
    rank, (name, directory) = dist.get_rank(), sys.argv[1:]
    cases = {"known": known, "any_source": any_source}
    steps = rooted(rank) if name == "rooted" else [partial(cases[name], rank)] * STEPS
    dist.barrier()
    with commprof.profile(Path(directory)) as prof:
        for step in steps:
            step()
            prof.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
