import contextlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 8
SKIPPED = 5


def end_step() -> None:
    import commprof

    commprof.step()


def main() -> None:
    kind = sys.argv[1]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    ddp = DistributedDataParallel(model)
    optimizer = None if kind in ("manual", "marked") else torch.optim.SGD(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, enabled=kind == "scaler")
    for step in range(STEPS):
        model.zero_grad()
        for micro in range(4 if kind == "accumulate" else 1):
            with ddp.no_sync() if kind == "accumulate" and micro < 3 else contextlib.nullcontext():
                loss = ddp(torch.randn(4, 16)).square().mean()
                if step in (0, SKIPPED) and kind == "scaler":
                    loss = loss * float("inf")
                scaler.scale(loss).backward()
        if optimizer is None:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(parameter.grad, alpha=1e-2)
        elif kind != "skip" or step != SKIPPED:
            scaler.step(optimizer)
            scaler.update()
        if kind == "marked":
            end_step()
    sys.stdout.write(f"rank {rank} {loss.item().hex()}\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
