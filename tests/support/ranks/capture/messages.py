"""One rank of two that send each other messages late; a module to run with NAME DIRECTORY."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import commprof

STEPS = 6
LATE_S = 0.03


def known(rank: int) -> None:
    """Rank 0 sends late; rank 1 has been waiting for it."""
    if rank == 0:
        time.sleep(LATE_S)
        dist.send(torch.ones(1000), 1)
    else:
        dist.recv(torch.ones(1000), 0)


def any_source(rank: int) -> None:
    """As above, and then once more to a receiver that takes what comes."""
    known(rank)
    if rank == 0:
        time.sleep(LATE_S)
        dist.send(torch.ones(10), 1)
    else:
        dist.recv(torch.ones(10))


def main() -> None:
    """Each step under capture; the steps end together, but for the message."""
    dist.init_process_group("gloo")
    cases: dict[str, Callable[[int], None]] = {"known": known, "any_source": any_source}
    step, rank = cases[sys.argv[1]], dist.get_rank()
    dist.barrier()
    with commprof.profile(Path(sys.argv[2])) as prof:
        for _ in range(STEPS):
            step(rank)
            prof.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
