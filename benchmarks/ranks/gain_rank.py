"""Runs one rank of the jobs of ``benchmarks/attribution/gain_error.py``.

``python -m benchmarks.ranks.gain_rank JOBS DIR`` runs each job of the JSON file JOBS, and leaves
the traces of job i in DIR/i.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import commprof
from benchmarks.ranks.listed_jobs import run_listed

_CORES = sorted(os.sched_getaffinity(0))[:2]
_WIDTH, _LAYERS, _BATCH = 384, 8, 96


class _Job:
    """A job that trains linear layers under DDP."""

    def __init__(self, job: dict[str, Any]) -> None:
        torch.manual_seed(job["seed"])
        layers = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)]
        self._model = DistributedDataParallel(torch.nn.Sequential(*layers))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-4)
        self._middle = self._model.module[_LAYERS // 2]
        self._middle.register_full_backward_hook(lambda *_: self._delay("backward"))
        self._inputs = torch.randn(_BATCH, _WIDTH)
        self._weight = torch.full((_WIDTH, _WIDTH), 1e-3)
        self._job, self._is_late = job, False

    def run(self, directory: Path) -> None:
        dist.barrier()
        with commprof.profile(directory) as capture:
            for number, is_late in enumerate(self._job["late"]):
                turn, since_swap = divmod(
                    number + 1 - self._job["first_swap"], self._job["steps_per_core"]
                )
                self._is_late = is_late and dist.get_rank() == self._job["rank"]
                self._step(capture)
                if since_swap == 0:
                    dist.barrier()  # a rank that moved earlier would share the other rank's core
                    _move(dist.get_rank() + turn)
                capture.step()
        dist.barrier()

    def _step(self, capture: Any) -> None:
        with capture.phase("data"):
            inputs = torch.randn(_BATCH, _WIDTH)
            self._delay("data")
        with capture.phase("forward"):
            loss = self._model(inputs).square().mean()
            self._delay("forward")
        with capture.phase("backward"):
            loss.backward()
        with capture.phase("optimizer"):
            self._optimizer.step()
            self._optimizer.zero_grad()
            self._delay("optimizer")

    def _delay(self, phase: str) -> None:
        if not self._is_late or phase != self._job["phase"]:
            return
        if not self._job["computes"]:
            time.sleep(self._job["delay_ms"] / 1e3)
            return
        end = time.thread_time() + self._job["delay_ms"] / 1e3
        while time.thread_time() < end:
            torch.mm(self._inputs, self._weight)  # loads the core as the model does


def _move(turn: int) -> None:
    """Moves this process to the first core if ``turn`` is even, otherwise to the second."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # the thread has ended
            os.sched_setaffinity(int(thread), {_CORES[turn % 2]})


if __name__ == "__main__":
    _move(int(os.environ["RANK"]))
    run_listed(lambda job, directory: _Job(job).run(directory))
