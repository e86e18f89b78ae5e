"""Whether the sizes fit into this host's memory: found out before ranks are killed for it."""

from __future__ import annotations

from pathlib import Path

from commprof.errors import UsageError
from commprof.microbench.operations import HOOK_PREFIX
from commprof.microbench.plan import Plan

#: Per rank, in the place of one size: two buffers, what they must become, and how they differ.
_BUFFERS = 5
#: A model, its gradient, its bucket, three given gradients and the codec; for all sizes at once.
_HOOK_BUFFERS = 16
#: Of a rank itself: private memory of a process that imported torch and joined a gloo group, as
#: /proc/self/smaps_rollup has it with torch 2.13 for CPUs (147 MB; with shared pages 225).
_PROCESS_BYTES = 150_000_000


def check_memory(
    plan: Plan, meminfo: Path = Path("/proc/meminfo"), launched_here: int | None = None
) -> None:
    """Whether this host's ranks fit into its memory. Raises UsageError where they cannot.

    launched_here: how many of them run on this host already; None: all are to be started here.
    """
    available = _available_bytes(meminfo)
    if available is None or plan.backend == "nccl":
        return
    hooks = any(op.startswith(HOOK_PREFIX) for op in plan.ops)
    ranks, size = max(plan.world_sizes), max(plan.sizes_bytes)
    ranks = ranks if launched_here is None else min(ranks, launched_here)
    needed = size * ranks * (_HOOK_BUFFERS if hooks else _BUFFERS)
    needed += ranks * _PROCESS_BYTES if launched_here is None else 0
    if needed > available:
        raise UsageError(
            f"{ranks} ranks with sizes up to {size} bytes need about {needed / 1e9:.1f} GB of "
            f"memory and {available / 1e9:.1f} GB are free; lower -e or --nproc"
        )


def _available_bytes(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    fields = (line.split() for line in lines)
    return next((int(words[1]) * 1024 for words in fields if words[0] == "MemAvailable:"), None)
