"""Strategy `hsdp` (hybrid sharding): each group of ranks holds one copy of the model, in shards."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from commprof.errors import UsageError
from commprof.workloads.strategies.fsdp import Fsdp, FsdpOptions


@dataclass(frozen=True)
class HsdpOptions(FsdpOptions):
    """Options of HSDP: the options of FSDP2, and the size of the groups."""

    shard: int = field(default=0, metadata={"minimum": 0})
    """Largest number of ranks that share one copy of the model; 0: the ranks of one host, or as
    ``Hsdp.shard_size`` says if the hosts do not give several equal groups."""


class Hsdp(Fsdp):
    """Strategy that applies torch's fully_shard with a mesh of replicas and shards."""

    name: ClassVar[str] = "hsdp"
    options_type: ClassVar[type[Any]] = HsdpOptions

    def check(self, world_size: int) -> None:
        """Raises UsageError if the ranks do not divide into groups of the chosen size."""
        shard = self.options.shard
        if 0 < shard < world_size and world_size % shard:
            fitting = [n for n in range(1, world_size + 1) if world_size % n == 0]
            raise UsageError(
                f"hsdp: shard={shard} does not divide {world_size} ranks "
                f"(allowed: {', '.join(map(str, fitting))}, or 0 to let commprof choose)"
            )

    def shard_size(self, world_size: int, local_ranks: int | None = None) -> int:
        """Returns the number of ranks that share one copy of the model.

        The option `shard` gives this number. If `shard` is 0, the result is the number of ranks per
        host. If the hosts do not give several equal groups, the result is ``world_size / 2`` for an
        even ``world_size`` above 2, and otherwise ``world_size``.
        """
        if self.options.shard:
            return min(int(self.options.shard), world_size)
        local = local_ranks or int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
        if local < world_size and world_size % local == 0:
            return local
        return world_size // 2 if world_size % 2 == 0 and world_size > 2 else world_size

    def _mesh(self, device_type: str, world_size: int) -> DeviceMesh:
        ranks = self.shard_size(world_size)
        if ranks == world_size:
            return super()._mesh(device_type, world_size)
        return init_device_mesh(
            device_type, (world_size // ranks, ranks), mesh_dim_names=("replicate", "shard")
        )
