"""Prints the begin and end of each backward pass of a DDP model: DIRECTORY WAY.

With ``join``, the last pair is rank 0's part in the steps that only rank 1 trains.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import commprof

LATE_S = 0.1  # much longer than a busy machine lets a rank wait for a core
STEPS, MORE_STEPS = 4, 3
WAYS = ("reducer", "join", "delayed", "python_reducer", "compiled")

Stretches = list[tuple[int, int]]


def make(way: str) -> DistributedDataParallel:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    if way != "delayed":
        return DistributedDataParallel(layers, bucket_cap_mb=0.02)
    return DistributedDataParallel(
        layers,
        bucket_cap_mb=0.02,
        delay_all_reduce_named_params=[("3.weight", layers[3].weight)],
        param_to_hook_all_reduce=layers[0].bias,
    )


def passes(model: Any, count: int, compiled: bool) -> Iterator[tuple[int, int]]:
    for _ in range(count):
        loss = model(torch.ones(2, 64)).sum()
        time.sleep(LATE_S * dist.get_rank())
        begin_ns = time.monotonic_ns()
        if compiled:
            with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
                loss.backward()
        else:
            loss.backward()
        yield begin_ns, time.monotonic_ns()
        for parameter in model.parameters():
            parameter.grad = None


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    way, found = sys.argv[2], []
    if way in ("python_reducer", "compiled"):
        torch._dynamo.config.optimize_ddp = "python_reducer"
    ddp = make(way)
    compiled = way == "compiled"
    model = torch.compile(ddp, backend="aot_eager") if compiled else ddp
    with commprof.profile(sys.argv[1]) as prof:
        if way == "join":
            with ddp.join():
                count = STEPS + MORE_STEPS * dist.get_rank()
                for stretch in passes(model, count, compiled):
                    found.append(stretch)
                    prof.step()
                left_ns = time.monotonic_ns()
            found.append((left_ns, time.monotonic_ns()))
        else:
            with contextlib.closing(passes(model, STEPS, compiled)) as trained:
                for stretch in trained:
                    found.append(stretch)
                    prof.step()
        prof.step()
        dist.barrier()
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
