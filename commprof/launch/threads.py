"""How many threads each rank computes with, and who said so."""

from __future__ import annotations

from dataclasses import dataclass

from commprof.errors import UsageError
from commprof.launch.pinning import Pinning
from commprof.launch.topology import Topology

AUTO = "auto"
"""An equal part of the host's cores for each rank of the largest world size."""

_OPTION = "--threads-per-rank"


@dataclass(frozen=True)
class Threads:
    """Intra-op threads per rank, the same at every world size, so that these can be compared."""

    count: int
    source: str
    """"--threads-per-rank", "auto", "OMP_NUM_THREADS" or "default"."""


def choose_threads(
    asked: str | None, omp_num_threads: str | None, topology: Topology, largest: Pinning, ranks: int
) -> Threads:
    """What was asked for, else the user's own OMP_NUM_THREADS, else 1, as torchrun has it.

    Args:
        asked: a whole number, "auto", or None.
        omp_num_threads: of the environment; OpenMP allows a list by nesting level, of which the
            first counts.
        topology: of this host.
        largest: where the ranks of the largest world size run.
        ranks: of the largest world size, on this host.

    Raises:
        UsageError: either is no whole number of 1 or more.
    """
    if asked is not None and asked != AUTO:
        return Threads(_count(asked, f"{_OPTION} {asked}", f", or {AUTO}"), _OPTION)
    if omp_num_threads:
        first = omp_num_threads.split(",")[0].strip()
        what = f"OMP_NUM_THREADS={omp_num_threads}"
        return Threads(_count(first, what, f"; unset it, or give {_OPTION} N"), "OMP_NUM_THREADS")
    if asked is None:
        return Threads(1, "default")
    share = topology.usable_cores // ranks
    if largest.sets:
        smallest = min(largest.sets, key=len)
        share = min(share, sum(not set(core.cpus).isdisjoint(smallest) for core in topology.cores))
    return Threads(max(1, share), AUTO)


def _count(text: str, what: str, more: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{what} is out of range (allowed: a whole number, 1 or more{more})")
    return int(text)
