"""Trains one rank: the arguments are ``both DIR`` or ``until DIR FILE``.

``both`` records 12 steps in always-on mode and in full; ``until`` trains until FILE exists.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import commprof
from commprof import _native
from commprof.trace.schema import MODES


def main() -> None:
    what, directory = sys.argv[1], sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    ddp = DistributedDataParallel(
        torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(4))), bucket_cap_mb=0.1
    )
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    last = torch.zeros(1)
    with commprof.profile(directory, mode="always-on" if what == "both" else "off") as profiler:
        if what == "both":
            assert _native.native is not None
            _native.native.set_mode(MODES.index("full"))
        step = 0
        while not last.item():
            optimizer.zero_grad()
            ddp(torch.randn(8, 128)).square().mean().backward()
            optimizer.step()
            step += 1
            done = step == 12 if what == "both" else Path(sys.argv[3]).exists()
            last = torch.tensor([float(done)])
            time.sleep(0.005)
            dist.all_reduce(last)
            profiler.step()
            if step == 1:
                Path(directory, f"pid_{dist.get_rank()}").write_text(str(os.getpid()))
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.05)  # torch 2.13's gloo threads may abort a process that ends at once


if __name__ == "__main__":
    main()
