from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.profiler import ProfilerActivity, profile, schedule

import commprof

STEPS = 5
LATE_S = 0.05


def train(directory: Path) -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pair = dist.new_group([0, 1])
    whole, part = torch.ones(600 * ranks), torch.ones(600)
    (directory / "torch").mkdir(exist_ok=True)
    trace = directory / "torch" / f"rank{rank}.json"
    with (
        commprof.profile(directory / "run") as ours,
        profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=0, warmup=0, active=STEPS, repeat=1),
            on_trace_ready=lambda done: done.export_chrome_trace(str(trace)),
            record_shapes=True,
        ) as theirs,
    ):
        for _ in range(STEPS):
            if rank == ranks - 1:
                time.sleep(LATE_S)
            waiting = functional.all_reduce(torch.ones(1000), "sum", dist.group.WORLD)
            (waiting + 1).sum()
            dist.reduce_scatter_tensor(part, whole)
            dist.reduce_scatter(part, [torch.ones(600) for _ in range(ranks)])
            dist.all_to_all([part] * ranks, list(whole.split(600)))
            dist.all_gather_into_tensor(whole, part)
            dist.monitored_barrier()
            if rank < 2:
                dist.all_reduce(torch.ones(300), group=pair)
                dist.all_gather_into_tensor(torch.ones(400), torch.ones(200), group=pair)
            ours.step()
            theirs.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    train(Path(sys.argv[1]))
