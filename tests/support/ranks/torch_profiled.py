from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

import commprof

COLLECTIVES = 5


def train(directory: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    values = torch.ones(1000)
    with (
        commprof.profile(directory) as prof,
        profile(activities=[ProfilerActivity.CPU]) as torch_prof,
    ):
        for _ in range(COLLECTIVES):
            dist.all_reduce(values)
            time.sleep(0.01)
            prof.step()
    torch_prof.export_chrome_trace(str(directory / f"torch_{rank}.json.gz"))
    dist.destroy_process_group()


if __name__ == "__main__":
    train(Path(sys.argv[1]))
