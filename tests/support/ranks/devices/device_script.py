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
STEPS = 4
STREAM = 0


def bucket(device: Any, tensor: torch.Tensor, copying_ns: float) -> Any:
    """Acts as DDP does: issues in the backward pass, then waits and copies at its end."""

    def finalize(work: Any) -> None:
        work.get_future().wait()
        device.compute(copying_ns)

    def hook(gradient: torch.Tensor) -> None:
        work = dist.all_reduce(tensor, async_op=True)
        Variable._execution_engine.queue_callback(lambda: finalize(work))

    return hook


def train(device: Any, profiler: Any, tensor: torch.Tensor) -> None:
    weight = torch.ones(1, requires_grad=True)
    weight.register_hook(bucket(device, tensor, 1.5 * MS))
    for _ in range(STEPS):
        with profiler.phase("forward"):
            device.compute(4 * MS)
            device.collectives_take(3 * MS)
            hidden = dist.all_reduce(tensor, async_op=True)
            device.compute(5 * MS)
            hidden.wait()
        with profiler.phase("backward"):
            device.collectives_take(6 * MS)
            exposed = dist.all_reduce(tensor, async_op=True)
            device.compute(2 * MS)
            exposed.wait()  # waits 4 ms
            device.collectives_take(2 * MS)
            dist.all_reduce(tensor)  # takes 2 ms in the compute stream
            device.collectives_take(5 * MS)
            weight.sum().backward()  # waits 5 ms, then copies for 1.5 ms
        profiler.step()


def wait_otherwise(device: Any, tensor: torch.Tensor) -> None:
    device.collectives_take(4 * MS)
    dist.all_reduce(tensor, async_op=True).synchronize()
    device.collectives_take(5 * MS)
    dist.all_reduce(tensor, async_op=True).block_current_stream()


def main(directory: Path) -> None:
    device = fake_device.load()
    dist.Backend.register_backend("fakedevice", device.backend, devices=["privateuseone"])
    dist.init_process_group("fakedevice", store=dist.HashStore(), rank=0, world_size=1)
    if hasattr(device, "hear_completions"):
        device.hear_completions(dist.group.WORLD)
    tensor = device.tensor(1000)
    # A process's first backward pass takes longer than the stalls that the test looks for.
    torch.ones(1, requires_grad=True).sum().backward()
    with commprof.profile(directory) as profiler:
        # This call shows the device to capture; the collective is long so that its end is marked.
        device.collectives_take(20 * MS)
        dist.all_reduce(tensor)
        profiler.step()
        before = dict(device.counts())
        train(device, profiler, tensor)
        after = dict(device.counts())
        wait_otherwise(device, tensor)
        time.sleep(0.2)  # until the device is done
        device.capture(True)
        dist.all_reduce(tensor, async_op=True).wait()
        device.capture(False)
        stats = profiler.stats()
    truth = {
        "stalls": [[device.to_host(t) for t in pair] for pair in device.stalls(STREAM)],
        "collectives": [[device.to_host(t) for t in one] for one in device.collectives()],
        "heard": device.heard(),
        "before": before,
        "after": after,
        "counts": dict(device.counts()),
        "dropped": stats.records_dropped,
    }
    (directory / "truth.json").write_text(json.dumps(truth))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
