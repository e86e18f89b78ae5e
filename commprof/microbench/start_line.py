"""Where all ranks stand before each sample, so that they begin together.

On one host they agree through memory that they share: a rank writes that it is there, rank 0
writes the time at which all begin, by the clock that all have. That costs a few microseconds and
leaves a microsecond of skew, where a barrier of the backend costs as much as a small collective
and lets the ranks go at different times.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist

from commprof.errors import CommprofError

_STRIDE = 16  # int64 per rank: two cache lines, so that no rank's writes disturb another's
_LEAD_NS = 10_000  # longer than it takes a waiting rank to see the time
_SPINS = 2000  # about a millisecond; then the others are late, and the core is theirs
_NAP_S = 50e-6
_PATIENCE_S = 300.0


class StartLine(Protocol):
    """One rank's place at it."""

    def wait(self) -> None:
        """Returns when the sample is to begin."""

    def close(self) -> None:
        """Gives back what it holds."""


class NoStart:
    """Samples follow each other; each rank begins when it is done."""

    def wait(self) -> None:
        """Returns at once."""

    def close(self) -> None:
        """Nothing to do."""


class BarrierStart:
    """Behind a barrier of the group that is measured."""

    def __init__(self, barrier: Callable[[], None]) -> None:
        """Barrier: see `calls.make_call`."""
        self.wait = barrier

    def close(self) -> None:
        """Nothing to do."""


class SharedStart:
    """By the clock that the ranks of one host share; see the module.

    The memory is int64: per rank, at a stride, how many samples it has come to; behind them the
    start time of the sample, in ns. Each place has one writer, and 8 aligned bytes are written
    whole.
    """

    def __init__(self, path: str, rank: int, world_size: int) -> None:
        """Maps the file, which holds zeros and is `SharedStart.bytes_for(world_size)` long."""
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), self.bytes_for(world_size))
        self._words = memoryview(self._map).cast("q")
        self._own = rank * _STRIDE
        self._others = [other * _STRIDE for other in range(world_size) if other != rank]
        self._start = world_size * _STRIDE
        self._leads = rank == 0
        self._sample = 0
        # Without a core for each rank nobody can begin on time, and spinning keeps others away.
        self._has_cores = len(os.sched_getaffinity(0)) >= world_size
        self._lead_ns = _LEAD_NS if self._has_cores else 0

    @staticmethod
    def bytes_for(world_size: int) -> int:
        """Length of the file."""
        return (world_size + 1) * _STRIDE * 8

    def wait(self) -> None:
        """Raises CommprofError when a rank does not come."""
        words = self._words
        self._sample += 1
        sample = self._sample
        before = words[self._start]
        words[self._own] = sample
        if self._leads:
            for place in self._others:
                self._until(lambda place=place: words[place] >= sample)  # type: ignore[misc]
            words[self._start] = time.monotonic_ns() + self._lead_ns
        else:
            # Rank 0 cannot write the next time before this rank has come to the next sample.
            self._until(lambda: words[self._start] != before)
        begin = words[self._start]
        while time.monotonic_ns() < begin:
            pass

    def _until(self, is_there: Callable[[], bool]) -> None:
        for _ in range(_SPINS if self._has_cores else 1):
            if is_there():
                return
        limit = time.monotonic() + _PATIENCE_S
        while not is_there():
            if self._has_cores:
                time.sleep(_NAP_S)
            else:
                os.sched_yield()
            if time.monotonic() > limit:
                raise CommprofError(
                    f"a rank did not come to the start of a sample within {_PATIENCE_S:g} s; "
                    "look for a rank that stopped"
                )

    def close(self) -> None:
        """Unmaps the file."""
        self._words.release()
        self._map.close()


def shared_start(group: Any, rank: int, world_size: int) -> SharedStart:
    """Made by all ranks of a group of one host together. Leaves no file behind."""
    path = [""]
    if rank == 0:
        directory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        descriptor, path[0] = tempfile.mkstemp(prefix="commprof-start-", dir=directory)
        os.ftruncate(descriptor, SharedStart.bytes_for(world_size))
        os.close(descriptor)
    dist.broadcast_object_list(path, src=0, group=group)
    line = SharedStart(path[0], rank, world_size)
    dist.barrier(group=group)
    if rank == 0:
        Path(path[0]).unlink()
    return line
