"""Threads and CPUs of this machine's ranks over all world sizes of a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from commprof.launch.pinning import Pinning, plan_pinning
from commprof.launch.threads import Threads, choose_threads
from commprof.launch.topology import Topology, format_cpu_list, this_host


@dataclass(frozen=True)
class Placing:
    """Made by `place_ranks`."""

    asked: str
    """One of PIN_MODES."""
    threads: Threads
    """The same at every world size."""
    topology: Topology
    """Of this machine."""
    nodes: int
    """Machines, each with an equal part of the ranks."""

    def pinning(self, world_size: int) -> Pinning:
        """Of this machine's ranks at one world size."""
        return plan_pinning(self.asked, self.topology, max(1, world_size // self.nodes))

    def settings(self, world_sizes: Sequence[int]) -> dict[str, Any]:
        """For ``run.json``; of this machine."""
        return {
            "threads_per_rank": self.threads.count,
            "threads_source": self.threads.source,
            "pinning": {
                "asked": self.asked,
                "cores": len(self.topology.cores),
                "cpus": format_cpu_list(self.topology.cpus),
                "numa_nodes": len(self.topology.nodes),
                "cpu_quota": self.topology.quota_cpus,
                "worlds": {str(size): _described(self.pinning(size)) for size in world_sizes},
            },
        }


def place_ranks(asked: str, threads: str | None, world_sizes: Sequence[int], nodes: int) -> Placing:
    """On the machine of the calling process.

    Args:
        asked: one of PIN_MODES.
        threads: of each rank, a number, "auto" or None.
        world_sizes: of the run.
        nodes: machines.

    Raises:
        UsageError: either is out of range, or the environment's OMP_NUM_THREADS is.
    """
    topology = this_host()
    ranks = max(1, max(world_sizes) // nodes)
    largest = plan_pinning(asked, topology, ranks)
    chosen = choose_threads(threads, os.environ.get("OMP_NUM_THREADS"), topology, largest, ranks)
    return Placing(asked, chosen, topology, nodes)


def _described(pinning: Pinning) -> dict[str, Any]:
    return {
        "mode": pinning.mode,
        "reason": pinning.reason,
        "disjoint": pinning.disjoint,
        "sets": [format_cpu_list(cpus) for cpus in pinning.sets],
    }
