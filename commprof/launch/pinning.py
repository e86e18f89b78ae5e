"""Which cores each rank of a host runs on: nothing but arithmetic on the host's topology.

Ranks of a host are neighbours in this order, and cores are ordered by NUMA node, so that ranks that
exchange most with their neighbours in a ring share a node. Memory follows by itself: Linux takes a
page from the node of the core that touches it first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from commprof.errors import UsageError
from commprof.launch.topology import Core, Topology, format_cpu_list, parse_cpu_list
from commprof.text import counted

PIN_MODES = ("none", "cores", "numa", "auto")
"""none: the scheduler decides. cores: equal parts of all cores. numa: the same, and none of them
crosses NUMA nodes. auto: numa where there are several nodes and a core for each rank, else none."""

#: Between the sets of two ranks in `Pinning.text`.
_BETWEEN = "/"


@dataclass(frozen=True)
class Pinning:
    """Of the ranks of one host."""

    mode: str
    """What it came to: "none", "cores" or "numa"."""
    sets: tuple[tuple[int, ...], ...]
    """By local rank, the CPUs that it may use; empty for "none"."""
    disjoint: bool
    """Whether no two ranks share a CPU; True for "none"."""
    reason: str
    """Why this one, or what is wrong with it, as a clause."""

    @property
    def text(self) -> str:
        """For the ranks: CPU lists by local rank, e.g. ``0-1/2-3``; empty for "none"."""
        return _BETWEEN.join(map(format_cpu_list, self.sets))


def plan_pinning(asked: str, topology: Topology, ranks: int) -> Pinning:
    """Where `ranks` ranks of this host run.

    Every rank gets as many CPUs as every other, so that none is late by its cores; what is over
    stays free. Sets are disjoint where there is a CPU for each rank.

    Raises:
        UsageError: an unknown mode.
    """
    if asked not in PIN_MODES:
        raise UsageError(f"unknown --pin {asked!r} (allowed: {', '.join(PIN_MODES)})")
    if asked == "none":
        return Pinning("none", (), True, "as asked")
    if asked == "auto":
        reason = _against(topology, ranks)
        if reason:
            return Pinning("none", (), True, reason)
    groups = [list(topology.cores)] if asked == "cores" else _by_node(topology)
    sets = _equal([cpus for cores, count in _spread(groups, ranks) for cpus in _deal(cores, count)])
    disjoint = len({cpu for cpus in sets for cpu in cpus}) == sum(map(len, sets))
    mode = "numa" if asked == "auto" else asked
    return Pinning(mode, sets, disjoint, _remark(topology, ranks, mode, disjoint))


def pin_this_process(text: str, local_rank: int) -> None:
    """Restricts this process, and the threads that it starts from now on, to its rank's CPUs.

    Args:
        text: as `Pinning.text` gives it; nothing is done for an empty one.
        local_rank: which part of it.

    Raises:
        UsageError: there is no such part, or the kernel refuses it.
    """
    if not text:
        return
    parts = text.split(_BETWEEN)
    if local_rank >= len(parts):
        raise UsageError(f"local rank {local_rank} has no part in the CPU sets {text!r}")
    try:
        os.sched_setaffinity(0, parse_cpu_list(parts[local_rank]))
    except OSError as error:
        raise UsageError(
            f"rank {local_rank} of this host cannot be pinned to CPUs {parts[local_rank]}: "
            f"{error.strerror}; run with --pin none"
        ) from None


def _against(topology: Topology, ranks: int) -> str:
    """Why nothing is pinned by itself; empty if it is."""
    if ranks > topology.usable_cores:
        return f"{ranks} ranks on {_cores(topology)}: pinned ranks would queue for their own"
    if len(topology.nodes) < 2:
        return "one NUMA node: memory is equally near to all cores"
    return ""


def _remark(topology: Topology, ranks: int, mode: str, disjoint: bool) -> str:
    if not disjoint:
        return f"{ranks} ranks share {len(topology.cpus)} CPUs: there is none for each"
    if ranks > topology.usable_cpus:
        return f"disjoint, but the cgroup grants only {topology.quota_cpus:g} CPUs of time"
    if ranks > len(topology.cores):
        return f"hyper-threads of the same core go to different ranks: {_cores(topology)}"
    nodes = len(topology.nodes)
    inside = " and none crosses nodes" if mode == "numa" and nodes > 1 else ""
    return f"disjoint{inside}, {counted(nodes, 'NUMA node')}"


def _cores(topology: Topology) -> str:
    return counted(topology.usable_cores, "core")


def _by_node(topology: Topology) -> list[list[Core]]:
    return [[core for core in topology.cores if core.node == node] for node in topology.nodes]


def _spread(groups: Sequence[list[Core]], ranks: int) -> list[tuple[list[Core], int]]:
    """How many neighbouring ranks go to each group, in proportion to its cores."""
    total = sum(map(len, groups))
    counts = [0] * len(groups)
    for rank in range(ranks):
        position, group = rank * total // ranks, 0
        while position >= len(groups[group]):
            position -= len(groups[group])
            group += 1
        counts[group] += 1
    return [(group, count) for group, count in zip(groups, counts, strict=True) if count]


def _deal(cores: Sequence[Core], ranks: int) -> list[tuple[int, ...]]:
    """Whole cores to each rank; hyper-threads where there are too few; else shared CPUs."""
    if ranks <= len(cores):
        share = len(cores) // ranks
        parts = [cores[i * share : (i + 1) * share] for i in range(ranks)]
        return [tuple(cpu for core in part for cpu in core.cpus) for part in parts]
    deepest = max(len(core.cpus) for core in cores)
    # First hyper-threads first: ranks meet on a core as late as possible.
    cpus = [core.cpus[i] for i in range(deepest) for core in cores if i < len(core.cpus)]
    share = max(1, len(cpus) // ranks)
    return [tuple(cpus[(i * share + j) % len(cpus)] for j in range(share)) for i in range(ranks)]


def _equal(sets: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Cut to the smallest."""
    size = min(map(len, sets))
    return tuple(cpus[:size] for cpus in sets)
