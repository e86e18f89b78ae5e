"""Makes calls that wait for the other rank before they are issued: DIRECTORY MODE [LEVEL].

At the default LEVEL of TORCH_DISTRIBUTED_DEBUG, DETAIL, torch compares each call between the ranks.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import commprof

LATE_S = 0.1  # much longer than a busy machine lets a rank wait for a core
WORK_S = 0.05
STEP_LATE_S, STEPS = 0.02, 20


def later(ones: torch.Tensor) -> None:
    work = dist.all_reduce(ones, async_op=True)
    until = time.monotonic() + WORK_S
    while time.monotonic() < until:
        pass
    work.wait()


def message(ones: torch.Tensor) -> None:
    if dist.get_rank() == 0:
        dist.recv(ones, 1)
    else:
        dist.send(ones, 0)


CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "all_reduce": dist.all_reduce,
    "async_op": lambda ones: dist.all_reduce(ones, async_op=True).wait(),
    "later": later,
    "reduce_scatter": lambda ones: dist.reduce_scatter_tensor(ones[:1], ones.clone()),
    "barrier": lambda _: dist.barrier(),
    "message": message,
}


def main() -> None:
    torch.set_num_threads(1)
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = sys.argv[3] if len(sys.argv) > 3 else "DETAIL"
    dist.set_debug_level_from_env()  # the fork server imported torch before the variable was set
    dist.init_process_group("gloo")
    if len(sys.argv) > 3:
        steadily_late()
    else:
        each_call()
    dist.barrier()
    dist.destroy_process_group()


def steadily_late() -> None:
    values = torch.ones(1 << 14)
    with commprof.profile(sys.argv[1], mode=sys.argv[2]) as prof:
        for _ in range(STEPS):
            time.sleep(STEP_LATE_S if dist.get_rank() == 1 else STEP_LATE_S / 10)
            dist.all_reduce(values)
            prof.step()


def each_call() -> None:
    rank, found, ones = dist.get_rank(), {}, torch.ones(2)
    # At the level DETAIL, with torch 2.13 to 2.15, DDP on a CPU would end the process.
    model = fully_shard(torch.nn.Linear(8, 8), mesh=init_device_mesh("cpu", (2,)))
    with commprof.profile(sys.argv[1], mode=sys.argv[2]) as prof:
        for name, call in {
            **CALLS,
            "fsdp2": lambda _: model(torch.ones(8)).sum().backward(),
        }.items():
            dist.barrier()
            prof.step()
            time.sleep(LATE_S * rank)
            begin_ns = time.monotonic_ns()
            call(ones)
            found[name] = {"begin_ns": begin_ns, "end_ns": time.monotonic_ns()}
            prof.step()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
