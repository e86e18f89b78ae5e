"""The job that a check runs in: rank, world size, host, and a gather over the ranks."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist


@dataclass(frozen=True)
class Ranks:
    """The ranks of the default process group, as seen from one of them.

    ``rank`` and ``host`` are this rank's global rank and its host.
    """

    rank: int
    world_size: int
    host: str

    def gather(self, value: Any) -> list[Any]:
        """Gathers every rank's value, in order of rank, on every rank."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values


def own_ranks() -> Ranks:
    """Returns the ranks of the default process group, as seen from this process."""
    return Ranks(dist.get_rank(), dist.get_world_size(), socket.gethostname())
