from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import commprof
from tests.support import fake_device

MS = 1e6
GROUPS = 40
HELD_UP_MS = 600


def many_groups(device: Any) -> None:
    tensor = device.tensor(1000)
    groups = [dist.new_group([0]) for _ in range(GROUPS)]
    works = []
    for round_ms in (0.1, HELD_UP_MS):
        device.collectives_take(round_ms * MS)
        works.append(dist.all_reduce(tensor, group=groups[0], async_op=True))
        for group in groups[1:]:
            device.collectives_take(0.1 * MS)
            works.append(dist.all_reduce(tensor, group=group, async_op=True))
        time.sleep(0.1)
    device.compute(5 * MS)
    time.sleep(HELD_UP_MS / 1e3)


def barrier(device: Any, index: int) -> None:
    """Does what ``dist.barrier`` does, which would need a tensor with an empty storage."""
    group = dist.group.WORLD
    assert group is not None
    torch.ops.c10d.barrier(device.tensor(1, index), group.boxed(), [index])


def another_device(device: Any) -> None:
    tensor = device.tensor(1000, 1)
    device.collectives_take(0.2 * MS)
    barrier(device, 1)
    for _ in range(20):
        dist.all_reduce(tensor, async_op=True).wait()
        time.sleep(0.005)
        commprof.step()


def late_device(device: Any) -> None:
    device.collectives_take(0.2 * MS)
    barrier(device, 0)
    device.compute(HELD_UP_MS * MS)
    tensor = device.tensor(1000, 1)
    for _ in range(5):
        dist.all_reduce(tensor, async_op=True).wait()
        commprof.step()


def another_capture(device: Any) -> None:
    tensor = device.tensor(1000)
    device.collectives_take(0.2 * MS)
    dist.all_reduce(tensor, async_op=True).wait()

    def capture() -> None:
        device.capture_globally(True)
        begun.set()
        over.wait()
        device.capture_globally(False)

    begun, over = threading.Event(), threading.Event()
    thread = threading.Thread(target=capture)
    thread.start()
    begun.wait()
    for _ in range(20):
        dist.all_reduce(tensor, async_op=True).wait()
        time.sleep(0.005)
    over.set()
    thread.join()


def main(directory: Path, scenario: str) -> None:
    name, _, backend = scenario.partition("@")
    device = fake_device.load(shields=backend != "unshielded")
    device.tells_stream(backend != "silent")
    if backend == "inherits":
        device.tells_no_capture()
    dist.Backend.register_backend("fakedevice", device.backend, devices=["privateuseone"])
    dist.init_process_group("fakedevice", store=dist.HashStore(), rank=0, world_size=1)
    with commprof.profile(directory):
        globals()[name](device)
        calls = device.calls()
    truth = {
        "collectives": [[device.to_host(t) for t in one] for one in device.collectives()],
        "counts": dict(device.counts()),
        "contexts": {str(index): count for index, count in device.contexts().items()},
        "invalidated": device.invalidated(),
        "calls": calls,
        "computed": device.to_host(device.reached(0)),
    }
    (directory / "truth.json").write_text(json.dumps(truth))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
