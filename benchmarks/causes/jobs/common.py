"""Code that the catalogue's jobs share.

Each job in this folder makes one mistake of docs/causes.md. If ``FIXED=1`` is in the environment,
the job runs without the mistake. The jobs imitate public reports, but contain no code from these
reports.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn

#: True for the healthy twin of a job: the same job without the mistake.
FIXED = os.environ.get("FIXED") == "1"
STEPS = int(os.environ.get("STEPS", "40"))
#: Folder with two pipes per rank, by which a benchmark controls the turns of two jobs; empty if
#: this job runs alone.
TURNS, TURN_STEPS = os.environ.get("TURNS", ""), int(os.environ.get("TURN_STEPS", "10"))


def begin() -> int:
    """Joins the job and returns the rank; sets the same random seed on all ranks."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    return dist.get_rank()


def end() -> None:
    """Leaves the job."""
    dist.barrier()
    dist.destroy_process_group()


def steps(rank: int | None = None) -> Iterator[int]:
    """Yields the index of each step; before a turn's first step, waits until the turn begins.

    ``rank``: this process's rank; if None, the environment variable RANK.
    """
    if not TURNS:
        yield from range(STEPS)
        return
    rank = int(os.environ["RANK"]) if rank is None else rank
    begins = os.open(f"{TURNS}/begins_{rank}", os.O_RDONLY)
    took = os.open(f"{TURNS}/took_{rank}", os.O_WRONLY)
    for first in range(0, STEPS, TURN_STEPS):
        _of_workers(signal.SIGSTOP)
        os.read(begins, 1)
        _of_workers(signal.SIGCONT)
        begin_ns = time.monotonic_ns()
        yield from range(first, first + TURN_STEPS)
        os.write(took, struct.pack("<q", time.monotonic_ns() - begin_ns))
    os.read(begins, 1)  # the end of this job must not disturb the other job's last turn


def _of_workers(number: signal.Signals) -> None:
    """Sends a signal to the workers of DataLoaders, which must not work in the other job's turn."""
    for worker in multiprocessing.active_children():
        if worker.pid is not None:
            os.kill(worker.pid, number)


class Sleep(torch.autograd.Function):
    """Sleeps in place of compute: ``ms`` in forward, and twice as long in backward."""

    @staticmethod
    def forward(ctx, x, ms):  # type: ignore[no-untyped-def]
        ctx.ms = ms
        time.sleep(ms / 1e3)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        time.sleep(2 * ctx.ms / 1e3)
        return grad, None


class Slept(nn.Module):
    """A linear layer that also sleeps: ``ms`` in forward, twice as long in backward."""

    def __init__(self, width: int, ms: float) -> None:
        super().__init__()
        self.linear, self.ms = nn.Linear(width, width), ms

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(Sleep.apply(x, self.ms))


def sleeping(layers: int, width: int, ms: float) -> nn.Sequential:
    """Returns a model of layers that sleep; each layer takes ``ms`` in forward."""
    return nn.Sequential(*(Slept(width, ms) for _ in range(layers)))


def computing(layers: int, width: int) -> nn.Sequential:
    """Returns a model of linear layers."""
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts)


def resting(model: nn.Module, width: int, ms: float) -> nn.Sequential:
    """Returns a model that also sleeps: ``ms`` in forward, and twice as long in backward.

    On a host with few cores, the threads of the exchanges get a core meanwhile.
    """
    return nn.Sequential(model, Slept(width, ms))
