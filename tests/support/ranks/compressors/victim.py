from __future__ import annotations

import json
import os
import time

import torch
import torch.distributed as dist

import commprof
from commprof.tune import compressors
from tests.support.ranks.compressors.checks import batch, make, train

EXIT_CODE = 9


def failure(ddp: torch.nn.Module, step: int) -> str:
    try:
        ddp(batch(step)).square().mean().backward()
    except RuntimeError as error:
        return str(error)
    return ""


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ddp = make()
    commprof.attach(ddp, hook=compressors.int8())
    train(ddp, range(2))
    if dist.get_rank() == dist.get_world_size() - 1:
        # The first layer's gradient comes last, while the first buckets are in flight.
        next(ddp.parameters()).register_hook(lambda _: os._exit(EXIT_CODE))
    begin = time.monotonic()
    errors = [failure(ddp, 2), failure(ddp, 3)]
    print(json.dumps({"errors": errors, "seconds": time.monotonic() - begin}))


if __name__ == "__main__":
    main()
