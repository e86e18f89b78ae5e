"""One rank of several in collectives with a root, to each of which one rank comes late.

``python -m tests.support.ranks.capture.rooted DIRECTORY``
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import commprof

LATE_S = 0.15


def main() -> None:
    """Every operation and root, with every rank late; a step each."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    value, parts = torch.ones(1000), [torch.ones(1000) for _ in range(size)]

    def of_root(root: int) -> list[torch.Tensor] | None:
        return parts if rank == root else None

    operations = [
        lambda: dist.broadcast(value, 0),
        lambda: dist.broadcast(value, 1),
        lambda: dist.gather(value, of_root(1), 1),
        lambda: dist.scatter(value, of_root(1), 1),
        lambda: dist.reduce(value, 1),
    ]
    with commprof.profile(Path(sys.argv[1])) as prof:
        for operation in operations:
            for late in range(size):
                dist.barrier()
                if rank == late:
                    time.sleep(LATE_S)
                operation()
                prof.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
