"""One of two ranks whose DDP model waits for gradients in one of several places.

Run as a module with the launcher's environment set: DIRECTORY WAY. Rank 1 begins each backward pass
later than rank 0. Prints a JSON list with the begin and end of each stretch in which rank 0 waits,
on the clock that both share. The last stretch of ``join`` is rank 0's part in the steps that rank 1
trains alone.
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

LATE_S = 0.1  # well above what a busy machine takes to give a rank a core
STEPS, MORE_STEPS = 4, 3
#: Places in which DDP waits for gradients.
WAYS = ("reducer", "join", "delayed", "python_reducer", "compiled")

Stretches = list[tuple[int, int]]


def make(way: str) -> DistributedDataParallel:
    """Returns a model of several buckets."""
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
    """Trains steps; yields the begin and end of each backward pass."""
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
    """Trains, and prints the times."""
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
