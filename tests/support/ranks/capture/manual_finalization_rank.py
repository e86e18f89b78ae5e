"""Finalises DDP's backward passes itself, which torch 2.15 and later allow.

The arguments are DIRECTORY MODE KIND, where KIND is "observed" or "attached".
"""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import commprof

LATE_S = 0.1  # much longer than a busy machine lets a rank wait for a core
STEPS = 6


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, found = dist.get_rank(), []
    layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    ddp = DistributedDataParallel(layers, bucket_cap_mb=0.02)
    ddp.require_manual_backward_finalization = True
    with commprof.profile(sys.argv[1], mode=sys.argv[2]) as prof:
        if sys.argv[3] == "attached":
            commprof.attach(ddp)
        for _ in range(STEPS):
            dist.barrier()
            loss = ddp(torch.ones(2, 64)).sum()
            time.sleep(LATE_S * rank)
            backward_ns = time.monotonic_ns()
            loss.backward()
            begin_ns = time.monotonic_ns()
            ddp.finalize_backward()
            found.append((backward_ns, begin_ns, time.monotonic_ns()))
            assert all(parameter.grad is not None for parameter in ddp.parameters())
            ddp.zero_grad()
            prof.step()
    dist.barrier()
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
