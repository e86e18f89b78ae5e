from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import commprof

LATE_S = 0.04


def main() -> None:
    directory, late = Path(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rows, columns = (
        [dist.new_group(m) for m in pairs] for pairs in ([[0, 1], [2, 3]], [[0, 2], [1, 3]])
    )
    value = torch.ones(1000)
    with commprof.profile(directory) as prof:
        for _ in range(25):
            with prof.phase("forward"):
                time.sleep(0.005 + LATE_S * (rank == late))
                dist.all_reduce(value, group=rows[rank // 2])
            with prof.phase("backward"):
                time.sleep(0.005)
                dist.all_reduce(value, group=columns[rank % 2])
            prof.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
