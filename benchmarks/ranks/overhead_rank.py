"""One rank of ``overhead.py``: runs interleaved blocks and prints its times as JSON."""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from overhead_modes import COLLECTIVE_MODES, DDP_MODES, models, watching
from torch import nn

import commprof
from commprof import _native

#: name: (layers, width, batch, bucket_cap_mb, steps per block)
SIZES = {
    "small": (8, 256, 16, 25, 20),  # buckets as DDP makes them without being told
    "many_buckets": (8, 256, 64, 0.25, 20),
    "medium": (12, 512, 96, 1.0, 6),
    "large": (8, 1024, 96, 4.0, 3),
}
#: Compared with capture off from step to step; they take turns after so many rounds.
PAIRED_MODES = ("full", "always-on")
ROUNDS_PER_TURN = 20
#: A ring holds the records of two such blocks: none is dropped, which would be cheaper.
COLLECTIVES_PER_BLOCK = 1000


def collectives(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Microseconds per call on the fake backend, which does nothing, per mode and round."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
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


def ddp_steps(size: str, rounds: int) -> dict[str, list[float]]:
    """Milliseconds per step, median of a block, per mode and round."""
    layers, width, batch, cap_mb, steps = SIZES[size]
    made = models(lambda: nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))), cap_mb)
    data = torch.randn(batch, width)
    order = random.Random(0)  # the same on all ranks
    times: dict[str, list[float]] = {mode: [] for mode in DDP_MODES}
    for round_number in range(rounds + 1):
        for mode in order.sample(DDP_MODES, len(DDP_MODES)):
            model = made[mode]
            with watching(mode) as end_of_step:
                _step(model, data, end_of_step)
                block = [_timed_step(model, data, end_of_step) for _ in range(steps)]
            if round_number > 0:  # the first one warms up
                times[mode].append(statistics.median(block) * 1e3)
    return times


def _timed_step(model: nn.Module, data: torch.Tensor, end_of_step: Callable[[], None]) -> float:
    begin = time.perf_counter()
    _step(model, data, end_of_step)
    return time.perf_counter() - begin


def _step(model: nn.Module, data: torch.Tensor, end_of_step: Callable[[], None]) -> None:
    model.zero_grad()
    model(data).square().mean().backward()
    end_of_step()


def step_by_step(size: str, rounds: int) -> dict[str, list[float]]:
    """Milliseconds per step of one model, capture off, on, off, on, ... from step to step.

    The tightest comparison there is: same model, neighbouring steps. With capture off the
    observer's kernels stay in place and pass through (see the first tables for their cost). Full
    and always-on mode take turns every few rounds: "on full" goes with "off_a full", and so on.
    """
    layers, width, batch, cap_mb, _ = SIZES[size]
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))), bucket_cap_mb=cap_mb
    )
    data = torch.randn(batch, width)
    times: dict[str, list[float]] = {
        f"{label} {mode}": [] for mode in PAIRED_MODES for label in ("off_a", "on", "off_b")
    }
    native = _native.native
    assert native is not None
    with tempfile.TemporaryDirectory() as directory, commprof.profile(directory) as profiler:
        for _ in range(10):
            _step(model, data, profiler.step)
        for first in range(0, rounds, ROUNDS_PER_TURN):
            for mode in PAIRED_MODES:
                native.set_mode(native.MODES.index(mode))
                _step(model, data, profiler.step)
                for _ in range(min(ROUNDS_PER_TURN, rounds - first)):
                    for label in ("off_a", "on", "off_b", "on"):
                        # Not the profiler's own: it reads the interfaces' counters, and a
                        # step straight after that is slower with capture on than off.
                        native.set_enabled(label == "on")
                        took = _timed_step(model, data, profiler.step)
                        times[f"{label} {mode}"].append(took * 1e3)
                native.set_enabled(True)
    return times


def main() -> None:
    """``overhead_rank.py collectives ROUNDS`` or ``overhead_rank.py SIZE[-alternating] ROUNDS``."""
    torch.set_num_threads(1)
    what, rounds = sys.argv[1], int(sys.argv[2])
    if what == "collectives":
        print(json.dumps(collectives(rounds)))
        return
    dist.init_process_group("gloo")
    size, _, alternating = what.partition("-")
    times = step_by_step(size, rounds) if alternating else ddp_steps(size, rounds)
    if dist.get_rank() == 0:
        print(json.dumps(times))
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.05)  # torch 2.13's gloo threads may abort a process that ends at once


if __name__ == "__main__":
    main()
