from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import commprof

STEPS = 12
#: A kernel spins for 20 million cycles of the GPU, which take about 10 ms.
SPIN = 20_000_000


def train(profiler: Any) -> tuple[dict[int, float], list[float], str]:
    torch.manual_seed(0)
    torch.backends.cudnn.deterministic = True
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).cuda()
    ddp = DistributedDataParallel(model, device_ids=[0], bucket_cap_mb=4)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    batch = torch.randn(256, 1024, device="cuda")
    marks, compute = [], []
    for _ in range(STEPS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with profiler.phase("forward") if profiler else contextlib.nullcontext():
            begin.record()
            loss = ddp(batch).square().mean()
            torch.cuda._sleep(SPIN)
            end.record()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if profiler:
            profiler.step()
        marks.append(torch.cuda.Event(enable_timing=True))
        marks[-1].record()
        compute.append((begin, end))
    torch.cuda.synchronize()
    # Step 0 ended before training, so the iteration with index i is step i + 1.
    steps = {i + 2: marks[i].elapsed_time(marks[i + 1]) for i in range(STEPS - 1)}
    weights = hashlib.sha256(
        b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    ).hexdigest()
    return steps, [a.elapsed_time(b) for a, b in compute], weights


def long_wait() -> float:
    tensor = torch.ones(1000, device="cuda")
    side = torch.cuda.Stream()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    with torch.cuda.stream(side):
        torch.cuda._sleep(4 * SPIN)
        work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


def graph() -> tuple[list[float], list[float]]:
    tensor = torch.full((4,), 3.0, device="cuda")
    result = torch.zeros_like(tensor)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        dist.all_reduce(tensor)
        result.copy_(tensor * 2)
    captured.replay()
    torch.cuda.synchronize()
    return result.tolist(), [6.0] * 4


def main(directory: Path, plain: bool) -> None:
    torch.cuda.set_device(0)
    dist.init_process_group(
        "nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda:0")
    )
    dist.all_reduce(torch.ones(1, device="cuda"))
    truth: dict[str, Any] = {}
    profiler = None if plain else commprof.profile(directory)
    with profiler or contextlib.nullcontext():
        dist.all_reduce(torch.ones(1, device="cuda"))
        if profiler:
            profiler.step()
        truth["step_ms"], truth["compute_ms"], truth["weights"] = train(profiler)
        truth["stall_ms"] = long_wait()
        time.sleep(1.1)  # capture compares the clocks once more in this time
        dist.all_reduce(torch.ones(1, device="cuda"))
        torch.cuda.synchronize()
        truth["dropped"] = profiler.stats().records_dropped if profiler else 0
    if not plain:
        with commprof.profile(directory / "graph"):
            truth["graph_result"], truth["graph_expected"] = graph()
    (directory / "truth.json").write_text(json.dumps(truth))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--plain" in sys.argv[2:])
