import os
import signal
import subprocess
import sys
import time
import zlib
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def stop_for_a_while():
    subprocess.Popen(["sh", "-c", f"sleep 1.5; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


def raise_error():
    raise LookupError("the user's own <b>mistake</b>\x1b[31m")


def exhaust_memory():
    """The caller must limit the address space: torch's error ends the loop."""
    kept = []
    while True:
        kept.append(torch.ones(16 << 20))


def grow():
    """The caller must limit the memory by a cgroup: the kernel then kills this process."""
    kept = []
    while len(kept) < 256:  # stops at 2 GiB if there is no limit
        kept.append(bytearray(b"1" * (8 << 20)))
    sys.exit("no limit")


def fork():
    pid = os.fork()
    if pid == 0:
        total = torch.ones(1000).sum().item()
        os._exit(0 if total == 1000 else 1)
    assert os.waitpid(pid, 0)[1] == 0


def in_a_child(index, base):
    assert index + base >= 0


def spawn():
    mp.spawn(in_a_child, args=(1,), nprocs=1)


def load_in_workers():
    for _ in range(2):
        loader = DataLoader(TensorDataset(torch.ones(16, 4)), batch_size=4, num_workers=2)
        assert sum(batch.sum().item() for (batch,) in loader) == 64


FAULTS = {
    "none": lambda: None,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "stop": stop_for_a_while,
    "raise": raise_error,
    "exit": lambda: sys.exit(3),
    "exit_at_once": lambda: os._exit(9),
    "exhaust_memory": exhaust_memory,
    "grow": grow,
    "fork": fork,
    "spawn": spawn,
    "workers": load_in_workers,
}


def train(fault, steps):
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    torch.manual_seed(1)
    patience = os.environ.get("PATIENCE")
    group = dist.new_group(timeout=timedelta(seconds=float(patience))) if patience else None
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    ddp = DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(steps):
        if step == steps // 2 and rank == last:
            FAULTS[fault]()
        loss = ddp(torch.randn(8, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}", flush=True)
        time.sleep(float(os.environ.get("PAUSE", 0.005)))
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in ddp.parameters())
    print(f"done {zlib.crc32(weights):08x}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]))
