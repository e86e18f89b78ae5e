"""Trains on one core, so that gloo's threads only run while the training thread sleeps.

A callback that follows a collective's completion therefore runs late.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import commprof

STEPS = 10
LATE_S = 0.005


def compute() -> None:
    until_s = time.perf_counter() + LATE_S
    while time.perf_counter() < until_s:
        pass


def main() -> None:
    directory, hooked = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    cores = sorted(os.sched_getaffinity(0))
    mine = cores[dist.get_rank() % len(cores)]
    model = DistributedDataParallel(
        nn.Sequential(*(nn.Linear(128, 128) for _ in range(4))), bucket_cap_mb=0.05
    )
    data = torch.ones(4, 128)
    with commprof.profile(directory) as profiler:
        if hooked == "hooked":
            assert commprof.attach(model).bucket_hook is not None
        for step in range(STEPS):
            model(data).square().mean().backward()
            compute()
            dist.all_reduce(data)
            compute()
            dist.all_reduce(data, async_op=True).get_future().wait()
            compute()
            profiler.step()
            if step == 1:  # by now all threads exist
                for thread in map(int, os.listdir("/proc/self/task")):
                    os.sched_setaffinity(thread, {mine})
                    if thread != threading.get_native_id():
                        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    dist.barrier()
    os._exit(0)  # torch 2.13's gloo threads may abort a process that ends


if __name__ == "__main__":
    main()
