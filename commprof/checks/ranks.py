"""What a check knows of the job that it runs in."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist


@dataclass(frozen=True)
class Ranks:
    """This rank among all ranks of the default process group."""

    rank: int
    world_size: int
    host: str

    def gather(self, value: Any) -> list[Any]:
        """Gathers every rank's value, in order, on every rank."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values


def own_ranks() -> Ranks:
    """Returns the ranks of the default process group."""
    return Ranks(dist.get_rank(), dist.get_world_size(), socket.gethostname())
