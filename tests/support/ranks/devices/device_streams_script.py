"""One process on the device without hardware, with streams and coalesced calls, under capture.

Streams are used as by FSDP2, coalesced calls as by NCCL.

Usage: device_streams_script.py DIRECTORY. Writes the trace and the device's truth to DIRECTORY.
"""

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

UNIT_NS = 10e6  # longer than a busy machine delays the process between two calls
COMPUTING, SIDE = 0, 5

device: Any = None


@dataclass(frozen=True)
class Stream:
    """Stream with the interface of torch.cuda.Stream."""

    stream_id: int
    device_index: int = 0


SIDE_STREAM = Stream(SIDE)


class Event:
    """Event with the interface of torch.cuda.Event; its methods are Python functions, as there."""

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
    """Runs a function on the other stream; returns an event after it."""
    device.use_stream(SIDE)
    work()
    event = Event()
    event.record(put_on)
    device.use_stream(COMPUTING)
    return event


def gather(tensor: torch.Tensor, put_on: Stream | None = SIDE_STREAM) -> Event:
    """Gathers as FSDP2 does, in a separate stream."""
    return on_side(lambda: dist.all_reduce(tensor), put_on)


def wait_for_events(tensor: torch.Tensor) -> None:
    """Makes the compute stream wait for several events, in turn.

    It waits 4 units of time for a gather that has run for 2, 3 units for compute without
    communication, 5 units for a gather, not at all for an event of another device, and 12 units for
    a gather of 7 units, which runs after one of 5.
    """
    device.collectives_take(6 * UNIT_NS)
    event = gather(tensor)
    device.compute(2 * UNIT_NS)
    event.wait(Stream(COMPUTING))
    event.wait()  # the event has passed by now
    on_side(lambda: device.compute(3 * UNIT_NS)).wait()  # a copied batch, without communication
    device.collectives_take(5 * UNIT_NS)
    gather(tensor).wait()
    gather(tensor, put_on=Stream(SIDE, device_index=1)).wait()  # records no event
    device.collectives_take(7 * UNIT_NS)
    gather(tensor, put_on=None).wait()  # records the event on the current stream
    other = gather(tensor)
    device.use_stream(7)
    other.wait(Stream(7))  # not the compute stream
    device.use_stream(COMPUTING)


def coalesce(tensor: torch.Tensor) -> None:
    """Sends two messages as one launch, without and with a future; then a batch that fails."""
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
        dist.all_reduce(tensor)  # capture knows the device from now on
        profiler.step()
        wait_for_events(tensor)
        profiler.step()
        coalesce(tensor)
        profiler.step()
        waits.remove()
        ahead_ns = max(device.reached(stream) for stream in (COMPUTING, SIDE, 7)) - device.now()
        time.sleep(ahead_ns / 1e9 + 0.2)  # until the device is done
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
