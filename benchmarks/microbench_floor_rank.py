"""One rank of ``microbench_floor.py``: both loops in turn, over one process group."""

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

from commprof.analysis.sweep_samples import Times, durations_us
from commprof.launch.worker import guarded
from commprof.microbench.buffers import Buffers, make_buffers
from commprof.microbench.calls import Side, make_call
from commprof.microbench.measure import Subject, take_samples
from commprof.microbench.operations import IN_PLACE, OPERATIONS

WARMUP = 5


def run(plan_path: str) -> None:
    """What the launcher calls."""
    guarded(lambda: measure(json.loads(Path(plan_path).read_text())))


def measure(plan: dict[str, Any]) -> None:
    """Writes one line of JSON per size into the plan's result file, as rank 0."""
    torch.set_num_threads(1)
    floor = _loaded(plan["floor"])
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    side = Side(dist.group.WORLD, rank, world_size, "cpu")
    nothing = torch.empty(0)
    meet = make_call("barrier", side, Buffers(nothing, nothing), "sum")
    order = random.Random(0)  # the same on all ranks
    for size_bytes in plan["sizes"]:
        buffers = make_buffers(
            OPERATIONS["all_reduce"], IN_PLACE, size_bytes // 4, rank, world_size, "float", "cpu"
        )
        subject = Subject(make_call("all_reduce", side, buffers, "sum"))
        calls = max(2, min(100, int(2e7 / (size_bytes + 2e5))))
        loops: dict[str, Callable[[], Times]] = {
            "ours": lambda: take_samples(subject, meet, calls),  # noqa: B023
            "floor": lambda: _in_cpp(floor, buffers.target, calls, True),  # noqa: B023
            "back_to_back": lambda: _in_cpp(floor, buffers.target, calls, False),  # noqa: B023
        }
        rounds = []
        for _ in range(plan["rounds"]):
            taken = {}
            for name in order.sample(sorted(loops), len(loops)):
                subject.repeat(min(WARMUP, calls))
                dist.barrier()
                taken[name] = loops[name]()
            rounds.append(taken)
        gathered: list[Any] = [None] * world_size
        dist.gather_object(rounds, gathered if rank == 0 else None)
        if rank == 0:
            with Path(plan["result"]).open("a") as file:
                file.write(json.dumps({"size_bytes": size_bytes, **_medians(gathered)}) + "\n")
    dist.barrier()
    dist.destroy_process_group()


def _in_cpp(floor: Any, tensor: Any, calls: int, barrier: bool) -> Times:
    begin, end = floor.all_reduces(dist.group.WORLD, tensor, calls, barrier)
    return Times(np.array(begin), np.array(end))


def _loaded(path: str) -> Any:
    """The loop in C++."""
    spec = importlib.util.spec_from_file_location("microbench_floor", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _medians(ranks: list[list[dict[str, Times]]]) -> dict[str, list[float]]:
    """Per loop the median of each round, in us; back to back the mean period."""
    out: dict[str, list[float]] = {"ours": [], "floor": [], "back_to_back": []}
    for turn in range(len(ranks[0])):
        times = {name: [one[turn][name] for one in ranks] for name in out}
        for name in ("ours", "floor"):
            out[name].append(float(np.median(durations_us(times[name], one_clock=True))))
        first = max(one.begin_ns[0] for one in times["back_to_back"])
        last = max(one.end_ns[-1] for one in times["back_to_back"])
        calls = len(times["back_to_back"][0].begin_ns)
        out["back_to_back"].append(float(last - first) / calls / 1e3)
    return out
