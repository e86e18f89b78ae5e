"""Cores and threads of a host's ranks at every world size of a run.

Consecutive ranks get consecutive cores, so that most neighbours in a ring share a NUMA node. Memory
needs no placement: Linux allocates a page on the node of the core that first touches the page.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from commprof.errors import UsageError
from commprof.launch.topology import Core, Topology, format_cpu_list, parse_cpu_list, this_host
from commprof.text import counted

PIN_MODES = ("none", "cores", "numa", "auto")
"""none: ranks are not pinned. cores: each rank gets an equal part of the cores. numa: as cores, but
each part is inside one NUMA node. auto: numa if there are several NUMA nodes and a core for each
rank, else none."""

#: Separator between the CPU sets of two ranks in `Pinning.text`.
_BETWEEN = "/"


@dataclass(frozen=True)
class Pinning:
    """Cores of the ranks of one host."""

    mode: str
    """Mode that was chosen: "none", "cores" or "numa"."""
    sets: tuple[tuple[int, ...], ...]
    """CPUs that each local rank may use; () in mode "none"."""
    disjoint: bool
    """True if no two ranks share a CPU; also True in mode "none"."""
    reason: str
    """Reason for the mode, or a problem with the mode."""

    @property
    def text(self) -> str:
        """The ranks' CPU lists as text, such as ``0-1/2-3``; "" in mode "none"."""
        return _BETWEEN.join(map(format_cpu_list, self.sets))


def plan_pinning(asked: str, topology: Topology, ranks: int) -> Pinning:
    """Chooses the cores of `ranks` ranks of this host.

    Every rank gets the same number of CPUs; remaining CPUs stay free.

    Raises:
        UsageError: `asked` is not one of `PIN_MODES`.
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
        text: `Pinning.text`; if empty, nothing is done.
        local_rank: this process's rank on its host.

    Raises:
        UsageError: the text has no CPUs for this rank, or the kernel refuses the CPUs.
    """
    if not text:
        return
    parts = text.split(_BETWEEN)
    if local_rank >= len(parts):
        raise UsageError(
            f"the CPU sets {text!r} have no set for local rank {local_rank}; start at most "
            f"{len(parts)} ranks on this host, or run with --pin none"
        )
    try:
        os.sched_setaffinity(0, parse_cpu_list(parts[local_rank]))
    except OSError as error:
        raise UsageError(
            f"rank {local_rank} of this host cannot be pinned to CPUs {parts[local_rank]}: "
            f"{error.strerror}; run with --pin none"
        ) from None


def _against(topology: Topology, ranks: int) -> str:
    """Returns the reason why "auto" pins no rank; "" if "auto" pins the ranks."""
    if ranks > topology.usable_cores:
        return f"{ranks} ranks on {_cores(topology)}: pinned ranks would queue for the same core"
    if len(topology.nodes) < 2:
        return "one NUMA node: all cores are equally near to memory"
    return ""


def _remark(topology: Topology, ranks: int, mode: str, disjoint: bool) -> str:
    if not disjoint:
        return f"{ranks} ranks share {len(topology.cpus)} CPUs: there are fewer CPUs than ranks"
    if ranks > topology.usable_cpus:
        return (
            "no two ranks share a CPU, but the cgroup grants CPU time of only "
            f"{topology.quota_cpus:g} CPUs"
        )
    if ranks > len(topology.cores):
        return f"different ranks get hyper-threads of the same core: {_cores(topology)}"
    nodes = len(topology.nodes)
    inside = ", and no rank crosses nodes" if mode == "numa" and nodes > 1 else ""
    return f"no two ranks share a CPU{inside} ({counted(nodes, 'NUMA node')})"


def _cores(topology: Topology) -> str:
    return counted(topology.usable_cores, "core")


def _by_node(topology: Topology) -> list[list[Core]]:
    return [[core for core in topology.cores if core.node == node] for node in topology.nodes]


def _spread(groups: Sequence[list[Core]], ranks: int) -> list[tuple[list[Core], int]]:
    """Distributes ranks among groups of cores, in proportion to the groups' numbers of cores."""
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
    """Returns each rank's CPUs: whole cores if they suffice, else hyper-threads or shared CPUs."""
    if ranks <= len(cores):
        share = len(cores) // ranks
        parts = [cores[i * share : (i + 1) * share] for i in range(ranks)]
        return [tuple(cpu for core in part for cpu in core.cpus) for part in parts]
    deepest = max(len(core.cpus) for core in cores)
    # The first hyper-threads of all cores come first, so that ranks share a core only if they must.
    cpus = [core.cpus[i] for i in range(deepest) for core in cores if i < len(core.cpus)]
    share = max(1, len(cpus) // ranks)
    return [tuple(cpus[(i * share + j) % len(cpus)] for j in range(share)) for i in range(ranks)]


def _equal(sets: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Shortens all sets to the length of the shortest."""
    size = min(map(len, sets))
    return tuple(cpus[:size] for cpus in sets)


AUTO = "auto"
"""Value of ``--threads-per-rank``: as many threads as a rank has cores at the largest world size,
unless OMP_NUM_THREADS is set."""

_OPTION = "--threads-per-rank"


@dataclass(frozen=True)
class Threads:
    """Number of intra-op threads per rank, the same at all world sizes."""

    count: int
    source: str
    """Origin of ``count``: "--threads-per-rank", "auto", "OMP_NUM_THREADS" or "default"."""


def choose_threads(
    asked: str | None, omp_num_threads: str | None, topology: Topology, largest: Pinning, ranks: int
) -> Threads:
    """Chooses a rank's number of threads.

    It is the option's number, else that of OMP_NUM_THREADS, else the cores for "auto", else 1.

    Args:
        asked: a whole number, "auto", or None.
        omp_num_threads: the environment variable.
        topology: cores of this host.
        largest: pinning at the largest world size.
        ranks: ranks on this host at the largest world size.

    Raises:
        UsageError: the option or the variable is not a whole number of 1 or more.
    """
    if asked is not None and asked != AUTO:
        return Threads(_count(asked, f"{_OPTION} {asked}", f", or {AUTO}"), _OPTION)
    given = omp_threads(omp_num_threads, f", or unset; {_OPTION} N overrides it")
    if given is not None:
        return Threads(given, "OMP_NUM_THREADS")
    if asked is None:
        return Threads(1, "default")
    share = topology.usable_cores // ranks
    if largest.sets:
        smallest = min(largest.sets, key=len)
        share = min(share, sum(not set(core.cpus).isdisjoint(smallest) for core in topology.cores))
    return Threads(max(1, share), AUTO)


def omp_threads(omp_num_threads: str | None, more: str = ", or unset") -> int | None:
    """Returns the threads that OMP_NUM_THREADS asks for; None if it is not set or empty.

    OpenMP allows a list with a number for each nesting level; the first number is used.

    Args:
        omp_num_threads: the environment variable.
        more: end of the error message's list of allowed values.

    Raises:
        UsageError: the variable is not a whole number of 1 or more.
    """
    if not omp_num_threads:
        return None
    first = omp_num_threads.split(",")[0].strip()
    return _count(first, f"OMP_NUM_THREADS={omp_num_threads}", more)


def _count(text: str, what: str, more: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{what} is out of range (allowed: a whole number, 1 or more{more})")
    return int(text)


@dataclass(frozen=True)
class RankPlacement:
    """Cores and threads of this machine's ranks, as `place_ranks` chose them."""

    asked: str
    """One of PIN_MODES."""
    threads: Threads
    """Threads of each rank, the same at every world size."""
    topology: Topology
    """Processors of this machine."""
    nodes: int
    """Number of machines; each has an equal part of the ranks."""

    def pinning(self, world_size: int) -> Pinning:
        """Returns the pinning of this machine's ranks at one world size."""
        return plan_pinning(self.asked, self.topology, max(1, world_size // self.nodes))

    def settings(self, world_sizes: Sequence[int]) -> dict[str, Any]:
        """Returns this machine's threads and pinning, for ``run.json``."""
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


def place_ranks(
    asked: str, threads: str | None, world_sizes: Sequence[int], nodes: int
) -> RankPlacement:
    """Chooses cores and threads of the ranks on the machine of the calling process.

    Args:
        asked: one of PIN_MODES.
        threads: threads of each rank: a number, "auto" or None.
        world_sizes: world sizes of the run.
        nodes: number of machines.

    Raises:
        UsageError: the mode, the threads or the environment's OMP_NUM_THREADS are out of range.
    """
    topology = this_host()
    ranks = max(1, max(world_sizes) // nodes)
    largest = plan_pinning(asked, topology, ranks)
    chosen = choose_threads(threads, os.environ.get("OMP_NUM_THREADS"), topology, largest, ranks)
    return RankPlacement(asked, chosen, topology, nodes)


def _described(pinning: Pinning) -> dict[str, Any]:
    return {
        "mode": pinning.mode,
        "reason": pinning.reason,
        "disjoint": pinning.disjoint,
        "sets": [format_cpu_list(cpus) for cpus in pinning.sets],
    }
