"""Runs one rank of ``microbench_floor.py``."""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from commprof.analysis.sweeps.sweep import Times, durations_us
from commprof.forecast.microbench.buffers import Buffers, make_buffers
from commprof.forecast.microbench.calls import Side
from commprof.forecast.microbench.measure import TimedCall, make_sampled_call, take_samples
from commprof.forecast.microbench.operations import IN_PLACE, OPERATIONS
from commprof.launch.worker import guarded

Loop = Callable[[int], Times]

LOOPS = ("ours", "floor", "floor_again")
"""``floor_again`` is the same loop as ``floor``, and shows how much equal loops differ."""


def run(plan_path: str) -> None:
    """Entry point that the launcher calls."""
    guarded(lambda: measure(json.loads(Path(plan_path).read_text())))


def measure(plan: dict[str, Any]) -> None:
    """Measures all loops; rank 0 writes a line of JSON per size into the plan's result file."""
    torch.set_num_threads(1)
    floor = _loaded(plan["floor"])
    dist.init_process_group("gloo")
    order = random.Random(0)  # gives all ranks the same order
    for size_bytes in plan["sizes"]:
        figures: dict[str, list[float]] = {name: [] for name in LOOPS}
        few = max(8, int(3e9 / size_bytes))
        for _ in range(plan["groups"]):
            group = dist.new_group(backend="gloo")  # new in each round, as in microbench
            loops = _loops(floor, group, size_bytes)
            turns = [_turn(loops, order, size_bytes) for _ in range(min(plan["turns"], few))]
            dist.destroy_process_group(group)
            _collect(turns, figures)
        if dist.get_rank() == 0:
            with Path(plan["result"]).open("a") as file:
                file.write(json.dumps({"size_bytes": size_bytes, **figures}) + "\n")
    dist.barrier()
    dist.destroy_process_group()


def _loops(floor: Any, group: Any, size_bytes: int) -> dict[str, Loop]:
    """Returns loops that share one buffer: with two buffers, times differ by 5 % at 100 MB."""
    side = Side(group, dist.get_rank(), dist.get_world_size(), "cpu")
    nothing = torch.empty(0)
    meet = make_sampled_call("barrier", side, Buffers(nothing, nothing), "sum")
    buffers = make_buffers(
        OPERATIONS["all_reduce"],
        IN_PLACE,
        size_bytes // 4,
        side.rank,
        side.world_size,
        "float",
        "cpu",
    )
    timed = TimedCall(make_sampled_call("all_reduce", side, buffers, "sum"))

    def in_cpp(calls: int) -> Times:
        return Times(*map(np.array, floor.all_reduces(group, buffers.target, calls)))

    return {
        "ours": lambda calls: take_samples(timed, meet, calls),
        "floor": in_cpp,
        "floor_again": in_cpp,
    }


def _turn(loops: dict[str, Loop], order: random.Random, size_bytes: int) -> dict[str, Times]:
    """Runs a few calls of each loop, in random order."""
    calls = max(1, min(20, int(4e6 / (size_bytes + 2e5))))
    taken = {}
    for name in order.sample(LOOPS, len(LOOPS)):
        loops[name](1)  # not timed: the caches hold the previous loop's data
        taken[name] = loops[name](calls)
    return taken


def _collect(turns: list[dict[str, Times]], figures: dict[str, list[float]]) -> None:
    """Adds each turn's median time of a call, in us, to ``figures`` on rank 0."""
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.gather_object(turns, gathered if dist.get_rank() == 0 else None)
    if dist.get_rank() != 0:
        return
    for ranks in zip(*gathered, strict=True):
        for name in LOOPS:
            durations = durations_us([one[name] for one in ranks], one_clock=True)
            figures[name].append(float(np.median(durations)))


def _loaded(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("microbench_floor", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
