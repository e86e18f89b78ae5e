"""A training run that survives the death of a rank: checkpoint, restart, resume.

    commprof run --nproc 2 --max-restarts 1 examples/checkpoint_resume.py
    commprof run --nproc 2 --max-restarts 1 examples/checkpoint_resume.py --kill-at 25

The second line kills the last rank at step 25 of the first attempt. commprof then restarts all
ranks, which continue from the last checkpoint. The report shows both attempts and the time lost
between them. The example also runs under ``torchrun --max-restarts 1`` and ``commprof env``.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT_EVERY = 10


def main():
    """Trains, saves, and continues from the checkpoint of the last attempt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    parser.add_argument("--kill-at", type=int, default=-1, metavar="STEP")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    # The first attempt trains from step 0 and replaces the checkpoint of an earlier run.
    first = load(options.checkpoint, ddp, optimizer) if attempt > 0 else 0

    for step in range(first, options.steps):
        if attempt == 0 and step == options.kill_at and rank == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        # The data depends only on step and rank, so that a resumed run trains on the same data.
        random = torch.Generator().manual_seed(1000 * step + rank)
        inputs = torch.randn(16, 32, generator=random)
        loss = (ddp(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % CHECKPOINT_EVERY == 0:
            save(options.checkpoint, ddp, optimizer, step + 1)
    if rank == 0 and first < options.steps:
        print(f"attempt {attempt} trained steps {first} to {options.steps - 1}")
        print(f"last loss {loss.item().hex()}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def load(path, ddp, optimizer):
    """Restores the state of the last attempt; returns the step to continue with."""
    if not path.exists():
        return 0
    saved = torch.load(path, weights_only=True)
    ddp.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["step"]


def save(path, ddp, optimizer, step):
    """Writes the checkpoint atomically, on rank 0."""
    if dist.get_rank() == 0:
        partial = path.with_suffix(".partial")
        torch.save(
            {
                "model": ddp.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": step,
            },
            partial,
        )
        os.replace(partial, path)


if __name__ == "__main__":
    sys.exit(main())
