"""One rank of a job whose last rank dies in the middle of a backward pass.

The others print what their backward passes raise: the pass that meets the death, and the next.
"""

from __future__ import annotations

import json
import os
import time

import torch
import torch.distributed as dist

import commprof
from commprof import compressors
from tests.support.ranks.compressors.checks import batch, make, train

EXIT_CODE = 9


def failure(ddp: torch.nn.Module, step: int) -> str:
    """What a backward pass raises."""
    try:
        ddp(batch(step)).square().mean().backward()
    except RuntimeError as error:
        return str(error)
    return ""


def main() -> None:
    """Two good steps and a bad one."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ddp = make()
    commprof.attach(ddp, hook=compressors.int8())
    train(ddp, range(2))
    if dist.get_rank() == dist.get_world_size() - 1:
        # The first layer's gradient comes last: the others' first buckets are under way.
        next(ddp.parameters()).register_hook(lambda _: os._exit(EXIT_CODE))
    begin = time.monotonic()
    errors = [failure(ddp, 2), failure(ddp, 3)]
    print(json.dumps({"errors": errors, "seconds": time.monotonic() - begin}))


if __name__ == "__main__":
    main()
