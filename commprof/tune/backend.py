"""The c10d backend ``commprof``: gloo, with shared memory between the ranks of one host.

::

    import commprof.backend
    torch.distributed.init_process_group("cpu:commprof")

All-reduce, broadcast, all-gather, reduce-scatter and barrier of dense CPU tensors go through
memory that the ranks share. Reductions must be sums, means, maxima or minima of fp16, bf16, fp32,
fp64, int32 or int64. All other operations go to gloo. If the ranks are on several hosts, only
all-reduce, which reduces within each host first, and barrier use the shared memory.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import ProcessGroupGloo

from commprof import _native, variables
from commprof.errors import CommprofError

#: Size of a slot in shared memory; each rank has two slots. At this size, barriers between slots
#: cost little, and a slot fits into the second-level cache.
SLOT_BYTES = 1 << 20


def register() -> None:
    """Registers the backend ``commprof`` with torch; further calls change nothing."""
    if "COMMPROF" not in dist.Backend._plugins:
        dist.Backend.register_backend("commprof", _create, extended_api=True, devices=["cpu"])


@dataclass(frozen=True)
class Hosts:
    """The ranks of a process group, by host."""

    rank: int
    """This process's rank in the group."""
    groups: list[list[int]]
    """Ranks of each host, in order. The hosts are sorted by their first rank."""

    @property
    def number(self) -> int:
        """Index of this rank's host in ``groups``."""
        return next(i for i, ranks in enumerate(self.groups) if self.rank in ranks)

    @property
    def local_rank(self) -> int:
        """Index of this rank among the ranks of its host."""
        return self.groups[self.number].index(self.rank)

    @property
    def owners(self) -> int:
        """Number of ranks on each host that exchange data with other hosts.

        The ranks with the same local rank exchange data, so this is the size of the smallest host.
        """
        return min(map(len, self.groups))

    @property
    def all_alone(self) -> bool:
        """True if no two ranks are on one host."""
        return all(len(ranks) == 1 for ranks in self.groups)


def find_hosts(store: Any, rank: int, size: int) -> Hosts:
    """Finds the host of each rank; all ranks of the group must call this function."""
    places = _everybodys(store, "place", rank, size, _place())
    ranks = range(size)
    return Hosts(rank, [[r for r in ranks if places[r] == p] for p in dict.fromkeys(places)])


def make_team(store: Any, hosts: Hosts, ranks: list[int], timeout: timedelta) -> Any:
    """Connects this host's ranks by shared memory; warns and returns None if any host fails.

    Args:
        store: the group's store; all ranks of the group call this function.
        hosts: the group's ranks by host.
        ranks: global rank of each rank of the group, for messages.
        timeout: time after which a rank that does not join counts as missing.
    """
    native = _native.tune
    own = hosts.groups[hosts.number]
    key = f"commprof/shm/{hosts.number}"
    place = {"rank": hosts.local_rank, "slot_bytes": SLOT_BYTES}
    segment, problem = None, ""
    if hosts.local_rank == 0:
        store.set(key, native.shm_name())
    name = store.get(key).decode()
    try:
        # Local rank 0 makes the segment; then the other ranks open it, or learn why there is none.
        if hosts.local_rank != 0:
            problem = store.get(f"{key}/made").decode()
        if not problem:
            segment = native.Segment(name, size=len(own), **place)
    except native.SegmentError as error:
        problem = str(error)
    if hosts.local_rank == 0:
        store.set(f"{key}/made", problem)
    problems = _everybodys(store, "shm-problem", hosts.rank, len(ranks), problem)
    if any(problems):
        first = next(i for i, text in enumerate(problems) if text)
        if hosts.rank == 0:
            warnings.warn(
                "commprof backend: shared memory cannot be used, so only gloo is used; reason from "
                f"rank {ranks[first]}: {problems[first]}",
                stacklevel=2,
            )
        return None
    assert segment is not None
    return native.Team(
        segment,
        name,
        global_ranks=[ranks[other] for other in own],
        timeout_ms=int(timeout.total_seconds() * 1e3),
        **place,
    )


def _create(options: Any, _: Any) -> Any:
    """Makes the backend of one group; plain gloo if the ranks cannot share memory."""
    if _native.tune_error is not None:
        raise CommprofError(
            f"the backend 'commprof' needs the native module: {_native.tune_error}; use 'gloo'"
        )
    native = _native.tune
    store, rank, size = options.store, options.group_rank, options.group_size
    gloo = _gloo(store, rank, size, options.timeout)
    gloo._set_sequence_number_for_group()
    hosts = find_hosts(store, rank, size)
    if hosts.all_alone:
        return gloo
    ranks = list(options.global_ranks_in_group) or list(range(size))
    team = make_team(store, hosts, ranks, _as_timedelta(options.timeout))
    if team is None:
        return gloo
    if len(hosts.groups) == 1:
        return native.shm_backend(gloo, team)
    across = None
    if hosts.local_rank < hosts.owners:
        ring = dist.PrefixStore(f"commprof/across/{hosts.local_rank}", store)
        across = _gloo(ring, hosts.number, len(hosts.groups), options.timeout)
    return native.hierarchical_backend(gloo, team, across, hosts.owners)


def _gloo(store: Any, rank: int, size: int, timeout: Any) -> Any:
    return ProcessGroupGloo(store, rank, size, timeout=_as_timedelta(timeout))


def _everybodys(store: Any, key: str, rank: int, size: int, own: str) -> list[str]:
    store.set(f"commprof/{key}/{rank}", own)
    return [store.get(f"commprof/{key}/{other}").decode() for other in range(size)]


def _place() -> str:
    """Returns an id that is equal for ranks that can share memory.

    ``COMMPROF_HOST`` overrides the id.
    """
    named = variables.HOST.value()
    if named:
        return f"named {named}"
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot_id} {os.stat('/dev/shm').st_dev}"


def _as_timedelta(timeout: Any) -> timedelta:
    return timeout if isinstance(timeout, timedelta) else timedelta(seconds=float(timeout))


register()
