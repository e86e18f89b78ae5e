from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import commprof
from tests.support.machines import extensions

FUTURES = ("complete", "null", "refused")


def _attributes(work: Any) -> dict[str, Any]:
    try:
        missing = str(work.no_such_attribute)
    except AttributeError as error:
        missing = f"AttributeError: {error}"
    return {
        "tag": work.tag,
        "twice": work.twice(4),
        "completed": work.is_completed(),
        "missing": missing.replace("commprof_foreign_backend.", ""),
    }


def _ddp_step(hook: bool) -> str:
    model = DistributedDataParallel(nn.Linear(4, 2))
    if hook:
        commprof.attach(model)
    try:
        model(torch.ones(3, 4)).sum().backward()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""


def main(directory: Path) -> None:
    backend = extensions.load("foreign_backend")
    dist.Backend.register_backend("foreign", backend.backend, devices=["cpu"])
    dist.init_process_group("foreign", store=dist.HashStore(), rank=0, world_size=1)
    said: dict[str, Any] = {"plain": _attributes(dist.all_reduce(torch.ones(2), async_op=True))}
    with commprof.profile(directory):
        for how in FUTURES:
            backend.futures(how)
            work = dist.all_reduce(torch.ones(2), async_op=True)
            work.wait()
            said[how] = _attributes(work)
        backend.futures("null")
        dist.all_reduce(torch.ones(2), async_op=True).get_future()
    said["after"] = _attributes(work)
    said["ddp"] = _ddp_step(hook=False)
    with commprof.profile(directory / "ddp"):
        said["ddp_recorded"] = _ddp_step(hook=True)
    dist.destroy_process_group()
    print(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
