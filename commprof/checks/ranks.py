"""The job that a check runs in: rank, world size, host, and a gather over the ranks."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist


@dataclass(frozen=True)
class Ranks:
    """The default process group, as one process sees it.

    ``rank`` is the global rank of this process. ``host`` is the name of its host.
    """

    rank: int
    world_size: int
    host: str

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all ranks, in order of rank. All ranks must call this method."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values


def own_ranks() -> Ranks:
    """Returns the default process group, as this process sees it."""
    return Ranks(dist.get_rank(), dist.get_world_size(), socket.gethostname())
