"""Runs one rank of the jobs of ``benchmarks/attribution/blame.py``.

``python -m benchmarks.ranks.blame_rank JOBS DIR`` runs each job of the JSON file JOBS, and leaves
the traces of job i in DIR/i. ``tests/support/builders/blame.py`` describes jobs.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import commprof
from benchmarks.ranks.listed_jobs import run_listed

#: Quota of a throttled rank: a fifth of a core.
_QUOTA_US, _PERIOD_US = 2_000, 10_000
_CGROUP = Path("/sys/fs/cgroup/cpu")


class _Rank:
    def __init__(self, job: dict[str, Any]) -> None:
        self._rank, self._job = dist.get_rank(), job
        self._groups = {name: dist.new_group(ranks) for name, ranks in job["groups"].items()}
        self._matrix = torch.full((96, 96), 0.01)
        self._stopper: subprocess.Popen[str] | None = None
        if any(i[0] == "pause" for step in job["steps"] for i in step[self._rank]):
            stop = 'while read s; do kill -STOP $0; sleep "$s"; kill -CONT $0; done'
            self._stopper = subprocess.Popen(
                ["sh", "-c", stop, str(os.getpid())], stdin=subprocess.PIPE, text=True
            )

    def run(self, directory: Path) -> None:
        dist.barrier()
        with commprof.profile(directory) as self._capture:
            for step in self._job["steps"]:
                for name, *arguments in step[self._rank]:
                    getattr(self, f"_{name}")(*arguments)
                self._capture.step()
        if self._stopper is not None and self._stopper.stdin is not None:
            self._stopper.stdin.close()
            self._stopper.wait()
        dist.barrier()

    def _work(self, phase: str, ms: float) -> None:
        self._in(phase, lambda: self._take(ms))

    def _take(self, ms: float) -> None:
        if not self._job["computes"]:
            time.sleep(ms / 1e3)
            return
        end = time.thread_time() + ms / 1e3
        while time.thread_time() < end:
            torch.mm(self._matrix, self._matrix)

    def _in(self, phase: str, what: Callable[[], None]) -> None:
        if phase == "other":
            what()
            return
        with self._capture.phase(phase):
            what()

    def _pause(self, ms: float) -> None:
        assert self._stopper is not None
        assert self._stopper.stdin is not None

        def stopped() -> None:
            begin = time.monotonic()
            self._stopper.stdin.write(f"{ms / 1e3}\n")  # type: ignore[union-attr]
            self._stopper.stdin.flush()  # type: ignore[union-attr]
            while time.monotonic() - begin < ms / 1e3:
                time.sleep(0.001)

        self._in("forward", stopped)

    def _starve(self, phase: str, ms: float) -> None:
        """Uses as much CPU time as the quota allows in ``ms``."""

        def throttled() -> None:
            with _throttled():
                end = time.thread_time() + ms / 1e3 * _QUOTA_US / _PERIOD_US
                while time.thread_time() < end:
                    torch.mm(self._matrix, self._matrix)

        self._in(phase, throttled)

    def _call(self, op: str, group: str, root: int, slow_ms: float) -> None:
        members = self._job["groups"][group]
        send, receive = torch.ones(64), [torch.zeros(64) for _ in members]
        if slow_ms:  # sends as many bytes as loopback transfers in this time
            send = torch.ones(int(slow_ms * self._job["floats_per_ms"]))
        to = self._groups[group]
        mine = receive if self._rank == root else None
        if op == "all_reduce":
            dist.all_reduce(send, group=to)
        elif op == "broadcast":
            dist.broadcast(send, root, group=to)
        elif op == "gather":
            dist.gather(send, mine, root, group=to)
        elif op == "scatter":
            dist.scatter(send, mine, root, group=to)
        elif op == "all_gather":
            dist.all_gather(receive, send, group=to)
        elif op == "reduce_scatter":
            dist.reduce_scatter(send, receive, group=to)
        else:
            raise ValueError(op)

    def _send(self, peer: int) -> None:
        dist.send(torch.ones(64), peer)

    def _recv(self, peer: int) -> None:
        dist.recv(torch.ones(64), peer)


class _throttled:
    """Puts this thread into a cgroup with a fifth of a core."""

    def __enter__(self) -> None:
        own = _CGROUP / f"commprof-blame-{os.getpid()}"
        own.mkdir(exist_ok=True)
        (own / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (own / "cpu.cfs_quota_us").write_text(str(_QUOTA_US))
        (own / "tasks").write_text("0")
        self._own = own

    def __exit__(self, *exception: object) -> None:
        (_CGROUP / "tasks").write_text("0")
        self._own.rmdir()


if __name__ == "__main__":
    run_listed(lambda job, directory: _Rank(job).run(directory))
