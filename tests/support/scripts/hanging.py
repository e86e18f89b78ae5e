"""Usage: hanging.py CASE GUILTY_RANK STEP FOLDER. Tests find a line by its comment "line: NAME"."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def dump_when_asked(folder, rank):
    from torch._C._distributed_c10d import _dump_fr_trace

    while not (folder / "dump_now").exists():
        time.sleep(0.05)
    partial = folder / f"partial_{rank}"
    partial.write_bytes(_dump_fr_trace(True, True, False))
    partial.rename(folder / "dumps" / f"rank_{rank}")


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(48, 64), torch.nn.Linear(64, 48)

    def forward(self, values, skips):
        hidden = self.first(values)
        return hidden if skips else self.last(hidden)


def never():
    while True:
        time.sleep(1)  # line: sleeps


def main():
    case, guilty, at, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    threading.Thread(target=dump_when_asked, args=(folder, rank), daemon=True).start()
    if case == "raising":  # a thread such as a loader's keeps the process alive after the exception
        threading.Thread(target=never).start()
    peer, first, second = (guilty + 1) % size, *(dist.new_group() for _ in range(2))
    model = DistributedDataParallel(Layers(), bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # In "other size" there are 2 MiB for each rank, which gloo sends in segments.
    large = torch.zeros(size << (19 if case == "other size" else 4))
    for step in range(at + 8):
        if step == at:
            (folder / f"there_{rank}").touch()
        odd = case if step == at and rank == guilty else ""
        if odd == "sleeping":
            never()
        if odd == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)  # line: stops
        if odd == "raising":
            raise ValueError("bad batch")
        if odd in ("fewer batches", "done early"):
            break
        loss = model(torch.ones(8, 48), odd == "skipped layer").square().mean()
        optimizer.zero_grad()
        loss.backward()  # line: backward
        optimizer.step()
        if odd == "circle":
            dist.all_reduce(large, group=second)  # line: second first
        dist.all_reduce(large, group=first)  # line: first
        dist.all_reduce(large, group=second)
        if case == "message" and rank == peer:
            dist.send(large, guilty)  # line: send
        if case == "message" and rank == guilty and not odd:
            dist.recv(large, peer)
        if odd == "other size":
            dist.all_reduce(large.repeat(2))  # line: larger
        elif case == "other size":
            dist.all_reduce(large)  # line: large
        if odd == "rank 0 only":
            dist.all_reduce(torch.zeros(2))  # line: evaluation
        losses = [torch.zeros(1) for _ in range(size)]
        if odd == "other operation":
            dist.barrier()  # line: barrier
        elif odd == "skipped call":
            pass
        else:
            dist.all_gather(losses, torch.zeros(1))  # line: gather
        if odd == "skipped call":
            dist.all_reduce(large)  # line: next
        if odd == "ahead":
            dist.all_gather(losses, torch.zeros(1))  # line: again
    if case == "done early":
        never()
    dist.barrier()  # line: end


if __name__ == "__main__":
    main()
