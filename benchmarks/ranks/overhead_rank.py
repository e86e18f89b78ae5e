"""Runs the processes of ``overhead.py``, which train in turns or make single calls.

``overhead_rank.py serve SOCKET`` imports torch, but not commprof. It forks a rank for each line of
JSON on its standard input. A rank writes to SOCKET when it is warm. A request to a rank has the
number of steps to count, and the number of uncounted steps before them.

``overhead_rank.py collectives ROUNDS [BACKEND]`` prints times of calls as JSON. It uses two ranks
of the fake backend, which does nothing, or one rank of another backend.

``overhead_rank.py counted JSON`` is one rank under valgrind, for ``instructions.py``.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import random
import signal
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from overhead_modes import COLLECTIVE_MODES, recorded, watching
from torch import nn
from torch.nn.parallel import DistributedDataParallel

#: Layers, width, batch size and bucket cap in MB, by name.
SIZES = {
    "small": (8, 256, 16, 25),  # DDP's default cap
    "many_buckets": (8, 256, 64, 0.25),
    "medium": (12, 512, 96, 1.0),
    "large": (8, 1024, 96, 4.0),
}
WARM_UP_STEPS = 4
#: Number of timed calls without a pause. The ring has room for their records: a call whose record
#: is dropped takes less time.
COLLECTIVES_PER_BLOCK = 1000
_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
#: Type and config for perf_event_open(2): hardware instructions, and CPU time of the thread.
INSTRUCTIONS, TASK_CLOCK = (0, 1), (1, 1)
_PR_SET_PDEATHSIG = 1
_USER_ONLY = 1 << 5 | 1 << 6  # exclude_kernel, exclude_hv


def collectives(rounds: int, backend: str = "fake") -> dict[str, dict[str, list[float]]]:
    """Returns the microseconds of a call on a backend, by call, mode and round."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if backend == "fake":
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    else:
        torch.set_default_device("cuda:0")
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    group, tensor = dist.group.WORLD, torch.ones(4)
    calls: dict[str, Callable[[], object]] = {
        "ProcessGroup.allreduce().wait()": lambda: group.allreduce([tensor]).wait(),
        "dist.all_reduce()": lambda: dist.all_reduce(tensor),
    }
    times: dict[str, dict[str, list[float]]] = {
        name: {mode: [] for mode in COLLECTIVE_MODES} for name in calls
    }
    for _ in range(rounds):
        for mode in random.sample(COLLECTIVE_MODES, len(COLLECTIVE_MODES)):
            with watching(mode):
                for name, call in calls.items():
                    for _ in range(200):
                        call()
                    begin = time.perf_counter()
                    for _ in range(COLLECTIVES_PER_BLOCK):
                        call()
                    elapsed = time.perf_counter() - begin
                    times[name][mode].append(elapsed / COLLECTIVES_PER_BLOCK * 1e6)
    return times


def serve(address: str) -> None:
    """Forks a rank for each line of standard input."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the ranks
    for line in sys.stdin:
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # kills a stopped rank, too
            asked = json.loads(line)
            os.environ.update(asked["environment"])
            rank(asked, address)
            os._exit(0)  # torch 2.13's gloo threads may abort a process that ends


@contextmanager
def training(
    asked: dict[str, Any],
) -> Iterator[tuple[Callable[[], None], Callable[[], AbstractContextManager[Any]]]]:
    """Trains a model until it is warm; yields two functions.

    The first function runs a step. The second function returns a context for the steps of one turn.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    on_gpu = asked["backend"] == "nccl"
    torch.set_default_device("cuda:0" if on_gpu else "cpu")
    dist.init_process_group(asked["backend"])
    mode = asked["mode"]
    layers, width, batch, cap_mb = SIZES[asked["size"]]
    holes = random_holes()
    model = DistributedDataParallel(
        nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))), bucket_cap_mb=cap_mb
    )
    data = torch.randn(batch, width)
    with recorded(mode, model, asked["directory"]) as (around, end_of_step):

        def step() -> None:
            model.zero_grad()
            model(data).square().mean().backward()
            end_of_step()
            if on_gpu:
                torch.cuda.synchronize()

        for _ in range(WARM_UP_STEPS):
            step()
        yield step, around
    del holes


def random_holes() -> list[bytearray]:
    """Makes holes of random size in this process's memory; returns the memory between the holes.

    The layout of memory alone can change times: of two plain processes with different holes, one
    took 1.7 % longer. Without holes, all processes of a mode would have the same layout.
    """
    order = random.Random(os.getpid())
    kept = [bytearray(64 * order.randrange(1, 2000)) for _ in range(400)]
    return kept[::2]


def rank(asked: dict[str, Any], address: str) -> None:
    """Trains until warm, and then runs a turn of steps for each request."""
    instructions = counter(*INSTRUCTIONS)
    with training(asked) as (step, around), socket.socket(socket.AF_UNIX) as controller:
        controller.connect(address)
        lines = controller.makefile("rw")
        has_commprof = "commprof" in sys.modules
        about = {"name": asked["name"], "pid": os.getpid(), "has_commprof": has_commprof}
        print(json.dumps(about), file=lines, flush=True)
        for line in lines:
            steps, uncounted = map(int, line.split())
            with around():
                for _ in range(uncounted):
                    step()
                taken = turn(step, steps, instructions)
            print(json.dumps(taken), file=lines, flush=True)


def counted(asked: dict[str, Any]) -> None:
    """Trains under valgrind, which counts the instructions of each step.

    This process tells valgrind when to begin. Each call of getpgid(2) begins a new count.
    """
    with training(asked) as (step, around), around():
        command = ["callgrind_control", "--instr=on", str(os.getpid())]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        step()
        for _ in range(asked["steps"]):
            os.getpgid(0)
            step()
        os.getpgid(0)
    os._exit(0)  # torch 2.13's gloo threads may abort a process that ends


def turn(
    step: Callable[[], None], steps: int, instructions: Callable[[], int] | None
) -> dict[str, Any]:
    """Runs steps; returns the figures per step.

    Times are in ms. "each" has the wall time and the CPU time of every step, in ns.
    """
    before = instructions() if instructions else 0
    process_ns, thread_ns = time.process_time_ns(), time.thread_time_ns()
    each = []
    for _ in range(steps):
        begin_ns, begin_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        step()
        each.append((time.perf_counter_ns() - begin_ns, time.thread_time_ns() - begin_cpu_ns))
    thread_ns = time.thread_time_ns() - thread_ns
    process_ns = time.process_time_ns() - process_ns
    counted = instructions() - before if instructions else None
    return {
        "thread": thread_ns / steps / 1e6,
        "process": process_ns / steps / 1e6,
        "instructions": counted and counted / steps,
        "wall": statistics.median(wall_ns for wall_ns, _ in each) / 1e6,
        "each": each,
    }


def counter(kind: int, config: int) -> Callable[[], int] | None:
    """Opens a counter of this thread in user mode; None if the machine has no such counter."""
    number = _PERF_EVENT_OPEN.get(platform.machine())
    if number is None:
        return None
    attributes = struct.pack("IIQQQQQ", kind, 112, config, 0, 0, 0, _USER_ONLY).ljust(112, b"\0")
    event = ctypes.CDLL(None).syscall(number, attributes, 0, -1, -1, 0)
    return None if event < 0 else lambda: struct.unpack("Q", os.read(event, 8))[0]


def main() -> None:
    if sys.argv[1] == "collectives":
        torch.set_num_threads(1)
        print(json.dumps(collectives(int(sys.argv[2]), *sys.argv[3:])))
    elif sys.argv[1] == "counted":
        counted(json.loads(sys.argv[2]))
    else:
        serve(sys.argv[2])


if __name__ == "__main__":
    main()
