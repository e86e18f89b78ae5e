"""What the process groups' backends were set up with, as far as torch tells."""

from __future__ import annotations

import torch
import torch.distributed as dist


def gloo_threads() -> dict[str, int]:
    """Threads that run the collectives of each CPU group of this process, by the group's name."""
    if not dist.is_available() or not dist.is_initialized():
        return {}
    found = {}
    try:
        for group in dist.distributed_c10d._world.pg_map:
            backend = group._get_backend(torch.device("cpu"))
            if backend.name() == "gloo":
                found[str(group.group_name)] = int(backend.options._threads)
            elif backend.name() == "commprof":
                found[str(group.group_name)] = 1  # of those through shared memory
    except (AttributeError, RuntimeError, TypeError):
        pass  # private to torch: it may go; a group may have no backend for the CPU
    return found
