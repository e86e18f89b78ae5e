from __future__ import annotations

import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import commprof


def one_line() -> None:
    for _ in range(2):
        dist.all_reduce(torch.ones(4))


def another() -> None:
    one_line()


def in_a_thread() -> None:
    thread = threading.Thread(target=one_line)
    thread.start()
    thread.join()


def main() -> None:
    dist.init_process_group("gloo")
    ddp = DistributedDataParallel(nn.Linear(4, 4))
    loss = ddp(torch.ones(2, 4)).sum()
    mode, directory = sys.argv[1:]
    stacks = {"on": True, "off": False, "environment": None}[mode]
    with commprof.profile(Path(directory), stacks=stacks) as prof:
        for step in (one_line, another, one_line, in_a_thread, loss.backward):
            step()
            prof.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
