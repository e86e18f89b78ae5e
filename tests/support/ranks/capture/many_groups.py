from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg  # noqa: F401 - registers "fake"

import commprof


def main(directory: Path, count: int) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.ones(1)
    before = 0
    with commprof.profile(directory):
        for turn in range(count):
            group = dist.new_group([0], backend="fake")
            dist.all_reduce(tensor, group=group)
            dist.destroy_process_group(group)
            del group
            if turn == count // 10:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({"grown_bytes_per_group": 1024 * grown_kib / (0.9 * count)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
