"""One rank of ``microbench_floor.py``: both loops in turn, over one process group."""

from __future__ import annotations

import json
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
    from torch.utils import cpp_extension

    torch.set_num_threads(1)
    floor = cpp_extension.load("microbench_floor", [plan["source"]], build_directory=plan["build"])
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    side = Side(dist.group.WORLD, rank, world_size, "cpu")
    nothing = torch.empty(0)
    meet = make_call("barrier", side, Buffers(nothing, nothing), "sum")
    for size_bytes in plan["sizes"]:
        buffers = make_buffers(
            OPERATIONS["all_reduce"], IN_PLACE, size_bytes // 4, rank, world_size, "float", "cpu"
        )
        subject = Subject(make_call("all_reduce", side, buffers, "sum"))
        rounds = []
        for _ in range(plan["rounds"]):
            per_round = max(2, min(100, int(2e7 / (size_bytes + 2e5))))
            subject.repeat(WARMUP)
            ours = take_samples(subject, meet, per_round)
            loops = {}
            for name, barrier in (("floor", True), ("back_to_back", False)):
                floor.all_reduces(dist.group.WORLD, buffers.target, WARMUP, False)
                dist.barrier()
                begin, end = floor.all_reduces(dist.group.WORLD, buffers.target, per_round, barrier)
                loops[name] = Times(np.array(begin), np.array(end))
            rounds.append({"ours": ours, **loops})
        gathered: list[Any] = [None] * world_size
        dist.gather_object(rounds, gathered if rank == 0 else None)
        if rank == 0:
            with Path(plan["result"]).open("a") as file:
                file.write(json.dumps({"size_bytes": size_bytes, **_medians(gathered)}) + "\n")
    dist.barrier()
    dist.destroy_process_group()


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
