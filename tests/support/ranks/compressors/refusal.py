"""Prints the error of a bucket that rank 0 can compress and rank 1 cannot."""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import commprof
from commprof.errors import CommprofError
from commprof.tune import compressors
from tests.support.ranks.compressors.checks import make
from tests.support.ranks.compressors.victim import failure

#: Rank 1 stays alive for this time, unless rank 0 gets the error before.
_STAYS_S = 15


def _shape() -> str:
    ddp = make()
    commprof.attach(ddp, hook=compressors.int8())
    if dist.get_rank() == 1:
        # The parameter's shape changes while its bucket fills, but not the bucket's memory.
        *_, weight, bias = ddp.parameters()
        weight.register_hook(lambda _: setattr(bias, "data", torch.zeros(3)))
    return failure(ddp, 0)


def _dtype() -> str:
    return _attached(
        make(dtype=torch.bfloat16 if dist.get_rank() else torch.float32, init_sync=False)
    )


def _sparse() -> str:
    layer = nn.Embedding(50, 8, sparse=dist.get_rank() == 1)
    return _attached(DistributedDataParallel(layer))


def _attached(ddp: DistributedDataParallel) -> str:
    try:
        commprof.attach(ddp, hook=compressors.int8())
    except CommprofError as error:
        return str(error)
    return failure(ddp, 0)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    begin = time.monotonic()
    told = {"shape": _shape, "dtype": _dtype, "sparse": _sparse}[sys.argv[1]]()
    print(json.dumps({"error": told, "seconds": time.monotonic() - begin}))
    if dist.get_rank() == 0:
        store.set("told", "")
    store.wait(["told"], timedelta(seconds=_STAYS_S))
    time.sleep(0.05)  # torch 2.13's gloo threads may abort a process that ends at once


if __name__ == "__main__":
    main()
