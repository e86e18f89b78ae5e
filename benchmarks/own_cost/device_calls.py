"""Counts the calls of the device's runtime that recording adds to a collective.

    python -m benchmarks.own_cost.device_calls

Runs on the simulated device of tests/support/fake_device. The training thread's calls for one
asynchronous collective and its wait are counted, with and without capture. The figure is the
difference. Only calls of c10's interface are counted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from typing import Any

import torch.distributed as dist
from tabulate import tabulate

import commprof
from tests.support import fake_device

COLLECTIVES = 500
MS = 1e6


def loop(device: Any, tensor: Any) -> Counter[str]:
    """Returns the number of device calls during COLLECTIVES collectives, by name.

    50 more collectives run before, as warm-up.
    """
    device.collectives_take(0.2 * MS)
    for i in range(COLLECTIVES + 50):
        if i == 50:
            before = Counter(device.calls())
        work = dist.all_reduce(tensor, async_op=True)
        device.compute(0.1 * MS)
        work.wait()
        time.sleep(0.0005)  # gives the device and capture time to keep up
    return Counter(device.calls()) - before


def count(shields: bool) -> dict[str, float]:
    """Returns the number of calls that capture adds to a collective, by name of the call."""
    device = fake_device.load(shields=shields)
    dist.Backend.register_backend("fakedevice", device.backend, devices=["privateuseone"])
    dist.init_process_group("fakedevice", store=dist.HashStore(), rank=0, world_size=1)
    tensor = device.tensor(1000)
    plain = loop(device, tensor)
    with tempfile.TemporaryDirectory() as directory, commprof.profile(directory):
        recorded = loop(device, tensor)
    dist.destroy_process_group()
    return {name: calls / COLLECTIVES for name, calls in (recorded - plain).items()}


def counted_apart(shields: bool) -> dict[str, float]:
    """Runs ``count`` in a new process."""
    command = [sys.executable, "-m", "benchmarks.own_cost.device_calls", "--count"]
    done = subprocess.run(
        [*command, *(["--shields"] if shields else [])], capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--shields", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.count:
        print(json.dumps(count(arguments.shields)))
        return
    columns = {"as CUDA": counted_apart(True), "without shields": counted_apart(False)}
    names = sorted(set().union(*columns.values()))
    rows = [[name, *(f"{calls.get(name, 0):.1f}" for calls in columns.values())] for name in names]
    rows.append(["sum", *(f"{sum(calls.values()):.1f}" for calls in columns.values())])
    print(tabulate(rows, headers=["calls per collective", *columns], disable_numparse=True))


if __name__ == "__main__":
    main()
