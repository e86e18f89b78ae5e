from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist

import commprof


def main(directory: str, begin: str) -> None:
    profiler = commprof.profile(directory)
    if begin == "before":
        profiler.start()
    dist.init_process_group("gloo")
    if begin == "after":
        profiler.start()
    for _ in range(3):
        dist.all_reduce(torch.ones(8))
        time.sleep(0.15)  # a step at least as long as the interval between two clock comparisons
        profiler.step()
    dist.barrier()
    profiler.stop()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
