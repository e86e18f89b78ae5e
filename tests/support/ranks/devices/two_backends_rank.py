"""In each step, two ranks issue the all-reduces of two backends in opposite orders.

Such orders occur where a thread saves a checkpoint during training.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import commprof
from tests.support import fake_device

STEPS = 12
HOST_BYTES, DEVICE_BYTES = 400, 4000


def main(directory: Path, mode: str) -> None:
    device = fake_device.load(shields=True)
    dist.Backend.register_backend("fakedevice", device.backend, devices=["privateuseone"])
    dist.init_process_group("cpu:gloo,privateuseone:fakedevice")
    rank = dist.get_rank()
    device.collectives_take(1e6)
    on_host, on_device = torch.ones(HOST_BYTES // 4), device.tensor(DEVICE_BYTES // 4)
    with commprof.profile(directory, mode=mode) as profiler:
        for step in range(STEPS):
            order = [on_host, on_device] if (step + rank) % 2 == 0 else [on_device, on_host]
            works = [dist.all_reduce(tensor, async_op=True) for tensor in order]
            for work in works:
                work.wait()
            if rank == 0:
                dist.send(on_host, 1)
            else:
                dist.recv(on_host, 0)
            profiler.step()
            time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
