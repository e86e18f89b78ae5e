"""One process with steps of known lengths on the device without hardware, under capture.

Usage: device_script.py DIRECTORY. Writes the trace and the device's truth to DIRECTORY.
"""

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
STREAM = 0  # the compute stream


def bucket(device: Any, tensor: torch.Tensor, copying_ns: float) -> Any:
    """Hook that acts as DDP: issues in backward, waits and copies in the finalisation."""

    def finalize(work: Any) -> None:
        work.get_future().wait()
        device.compute(copying_ns)

    def hook(gradient: torch.Tensor) -> None:
        work = dist.all_reduce(tensor, async_op=True)
        Variable._execution_engine.queue_callback(lambda: finalize(work))

    return hook


def train(device: Any, profiler: Any, tensor: torch.Tensor) -> None:
    """Runs steps with each way to wait; their exposed times follow from the figures."""
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
            exposed.wait()  # for 4 ms
            device.collectives_take(2 * MS)
            dist.all_reduce(tensor)  # in the stream itself: 2 ms
            device.collectives_take(5 * MS)
            weight.sum().backward()  # the finalisation waits 5 ms and copies 1.5
        profiler.step()


def wait_otherwise(device: Any, tensor: torch.Tensor) -> None:
    """Calls the other functions that make the stream wait; each exposes its collective's time."""
    device.collectives_take(4 * MS)
    dist.all_reduce(tensor, async_op=True).synchronize()
    device.collectives_take(5 * MS)
    dist.all_reduce(tensor, async_op=True).block_current_stream()


def main(directory: Path) -> None:
    device = fake_device.load()
    dist.Backend.register_backend("fakedevice", device.backend, devices=["privateuseone"])
    dist.init_process_group("fakedevice", store=dist.HashStore(), rank=0, world_size=1)
    if hasattr(device, "hear_completions"):  # torch 2.15 and newer
        device.hear_completions(dist.group.WORLD)
    tensor = device.tensor(1000)
    # A first backward before the recording, because it takes longer than the stalls to be found.
    torch.ones(1, requires_grad=True).sum().backward()
    with commprof.profile(directory) as profiler:
        # Capture learns of the device by this call, and marks its end only then: so the call is
        # long.
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
