from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import commprof
from commprof.capture.patches.waits import StreamWaits
from tests.support import fake_device

UNIT_NS = 10e6  # two calls are less than one unit apart, even on a busy machine
COMPUTING, SIDE = 0, 5

device: Any = None


@dataclass(frozen=True)
class Stream:
    stream_id: int
    device_index: int = 0


SIDE_STREAM = Stream(SIDE)


class Event:
    def __init__(self) -> None:
        self.at_ns = 0.0

    def record(self, stream: Stream | None = None) -> None:
        if stream is None or stream.device_index == 0:
            self.at_ns = device.reached(_on(stream))

    def wait(self, stream: Stream | None = None) -> None:
        device.wait_until(_on(stream), self.at_ns)


def _on(stream: Stream | None) -> int:
    return device.current_stream() if stream is None else stream.stream_id


def on_side(work: Any, put_on: Stream | None = SIDE_STREAM) -> Event:
    device.use_stream(SIDE)
    work()
    event = Event()
    event.record(put_on)
    device.use_stream(COMPUTING)
    return event


def gather(tensor: torch.Tensor, put_on: Stream | None = SIDE_STREAM) -> Event:
    return on_side(lambda: dist.all_reduce(tensor), put_on)


def wait_for_events(tensor: torch.Tensor) -> None:
    device.collectives_take(6 * UNIT_NS)
    event = gather(tensor)
    device.compute(2 * UNIT_NS)
    event.wait(Stream(COMPUTING))
    event.wait()
    on_side(lambda: device.compute(3 * UNIT_NS)).wait()
    device.collectives_take(5 * UNIT_NS)
    gather(tensor).wait()
    gather(tensor, put_on=Stream(SIDE, device_index=1)).wait()
    device.collectives_take(7 * UNIT_NS)
    gather(tensor, put_on=None).wait()
    other = gather(tensor)
    device.use_stream(7)
    other.wait(Stream(7))
    device.use_stream(COMPUTING)


def coalesce(tensor: torch.Tensor) -> None:
    group, at = dist.group.WORLD, torch.device("privateuseone", 0)
    assert group is not None
    device.collectives_take(4 * UNIT_NS)
    for has_future in (False, True):
        device.coalesced_has_future(has_future)
        with dist._coalescing_manager(group, at, async_ops=True) as batch:
            group.send([tensor], 0, 0)
            group.recv([tensor], 0, 0)
        batch.wait()
    device.refuse(True)
    refused = ""
    try:
        with dist._coalescing_manager(group, at, async_ops=True):
            group.send([tensor], 0, 0)
    except RuntimeError as error:
        refused = str(error)
    device.refuse(False)
    assert "nothing was launched" in refused, refused
    dist.all_reduce(tensor, async_op=True).wait()


def main(directory: Path) -> None:
    global device
    device = fake_device.load()
    dist.Backend.register_backend("fakedevice", device.backend, devices=["privateuseone"])
    dist.init_process_group("fakedevice", store=dist.HashStore(), rank=0, world_size=1)
    tensor = device.tensor(1000)
    untouched = Event.record, Event.wait
    waits = StreamWaits()
    with commprof.profile(directory) as profiler:
        waits.install(Event)
        dist.all_reduce(tensor)  # capture knows the device from its first collective on
        profiler.step()
        wait_for_events(tensor)
        profiler.step()
        coalesce(tensor)
        profiler.step()
        waits.remove()
        ahead_ns = max(device.reached(stream) for stream in (COMPUTING, SIDE, 7)) - device.now()
        time.sleep(ahead_ns / 1e9 + 0.2)
    truth = {
        "stalls": [[device.to_host(t) for t in pair] for pair in device.stalls(COMPUTING)],
        "collectives": [[device.to_host(t) for t in one] for one in device.collectives()],
        "restored": (Event.record, Event.wait) == untouched,
        "group_restored": not hasattr(dist.ProcessGroup._end_coalescing, "__wrapped__"),
    }
    (directory / "truth.json").write_text(json.dumps(truth))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
