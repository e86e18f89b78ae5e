import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

STEPS, REPLAYS = 10, 10


def kernels(run, folder: Path) -> list[tuple[int, int]]:
    """Returns the begin on CLOCK_MONOTONIC and the duration of each NCCL kernel, in ns."""
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities) as recorded:
        run()
        torch.cuda.synchronize()
    path = folder / f"profile_{dist.get_rank()}.json"
    recorded.export_chrome_trace(str(path))
    document = json.loads(path.read_text())
    path.unlink()
    # The profiler's times are in microseconds after ``baseTimeNanoseconds`` of the real-time clock.
    to_monotonic_ns = time.monotonic_ns() - time.time_ns()
    base_ns = int(document.get("baseTimeNanoseconds", 0)) + to_monotonic_ns
    found = [
        (base_ns + round(1000 * event["ts"]), round(1000 * event["dur"]))
        for event in document["traceEvents"]
        if event.get("cat") == "kernel" and "nccl" in event["name"].lower()
    ]
    return sorted(found)


def main(folder: Path) -> None:
    os.environ |= {"NCCL_HOSTID": os.environ["RANK"], "NCCL_SOCKET_IFNAME": "lo"}
    device = torch.device("cuda:0")
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(6))).to(device)
    model = DistributedDataParallel(layers, bucket_cap_mb=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def steps() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(256, 1024, device=device)).square().mean().backward()
            optimizer.step()

    steps()
    eager = kernels(steps, folder)
    tensor = torch.ones(1 << 20, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)

    def replays() -> None:
        for _ in range(REPLAYS):
            graph.replay()

    replayed = kernels(replays, folder)
    torch.cuda.synchronize()
    assert tensor[0].item() == 1.0
    result = {"eager": eager, "replayed": replayed}
    (folder / f"kernels_{dist.get_rank()}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
