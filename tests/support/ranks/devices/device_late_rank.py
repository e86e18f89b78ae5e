from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable

import commprof
from tests.support import fake_device

MS = 1e6
STEPS = 40
#: One phase must have more than half of the delay: otherwise no rank is named.
LATE_MS = {"forward": 15.0, "backward": 9.0}
PER_STEP = 3


def train(device: Any, profiler: Any, late: bool) -> None:
    tensor = device.tensor(1000)
    weight = torch.ones(1, requires_grad=True)

    def hook(gradient: torch.Tensor) -> None:
        work = dist.all_reduce(tensor, async_op=True)
        Variable._execution_engine.queue_callback(lambda: work.get_future().wait())

    weight.register_hook(hook)
    for _ in range(STEPS):
        with profiler.phase("forward"):
            device.compute((2 + late * LATE_MS["forward"]) * MS)
            dist.all_reduce(tensor, async_op=True).wait()
        dist.all_reduce(tensor)
        with profiler.phase("backward"):
            device.compute((1 + late * LATE_MS["backward"]) * MS)
            weight.sum().backward()
        profiler.step()
        time.sleep(0.04)  # with this pause, the host is at most one step ahead of its device


def main(directory: Path) -> None:
    device = fake_device.load(shields=True)
    dist.Backend.register_backend("fakedevice", device.backend, devices=["privateuseone"])
    dist.init_process_group("fakedevice")
    rank = dist.get_rank()
    torch.ones(1, requires_grad=True).sum().backward()
    device.collectives_take(3 * MS)
    with commprof.profile(directory, mode="always-on") as profiler:
        dist.all_reduce(device.tensor(1000))  # capture knows the device from now on
        profiler.step()
        train(device, profiler, rank == 1)
    found = [[device.to_host(t) for t in one] for one in device.collectives()]
    (directory / f"truth_{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
