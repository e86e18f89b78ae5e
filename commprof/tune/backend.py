"""The c10d backend ``commprof``: gloo, with shared memory between the ranks of one host.

::

    import commprof.backend
    torch.distributed.init_process_group("cpu:commprof")

All-reduce, broadcast, all-gather, reduce-scatter and barrier of dense CPU tensors go through
memory that the ranks share; everything else goes to gloo. If the ranks are on several hosts,
all-reduce adds up within each host first, and every other operation goes to gloo.
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

#: Size of a slot in shared memory; each rank has two slots. Between two barriers the ranks move one
#: block of this size: large enough that a barrier costs little, small enough to stay in the
#: second-level cache.
SLOT_BYTES = 1 << 20


def register() -> None:
    """Registers the backend ``commprof`` with torch; calling it again changes nothing."""
    if "COMMPROF" not in dist.Backend._plugins:
        dist.Backend.register_backend("commprof", _create, extended_api=True, devices=["cpu"])


@dataclass(frozen=True)
class Hosts:
    """The ranks of a group, grouped by host: ranks of one host can share memory."""

    rank: int
    """This process's rank in the group."""
    groups: list[list[int]]
    """Ranks of each host, in order; hosts sorted by their first rank. The same on all ranks."""

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
        """Number of ranks of each host that exchange data with other hosts.

        A rank exchanges data with the ranks that have the same local rank on the other hosts. So
        this number is the rank count of the smallest host.
        """
        return min(map(len, self.groups))

    @property
    def all_alone(self) -> bool:
        """True if no two ranks are on one host."""
        return all(len(ranks) == 1 for ranks in self.groups)


def find_hosts(store: Any, rank: int, size: int) -> Hosts:
    """Asks every rank of a group which host it is on, through the group's store."""
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
                "commprof backend: no shared memory, gloo alone is used; reason from rank "
                f"{ranks[first]}: {problems[first]}",
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
    """Makes the backend of one group, for ``init_process_group`` and ``new_group``.

    Returns plain gloo if no two ranks are on one host, or, with a warning, if ranks of one host
    cannot share memory. All ranks decide alike.
    """
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
    """Exchanges one text per rank through the store; returns them by rank."""
    store.set(f"commprof/{key}/{rank}", own)
    return [store.get(f"commprof/{key}/{other}").decode() for other in range(size)]


def _place() -> str:
    """Returns an id of the running kernel and /dev/shm; ranks with equal ids can share memory.

    ``COMMPROF_HOST`` overrides the id, to treat ranks of one machine as several hosts.
    """
    named = variables.HOST.value()
    if named:
        return f"named {named}"
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot_id} {os.stat('/dev/shm').st_dev}"


def _as_timedelta(timeout: Any) -> timedelta:
    return timeout if isinstance(timeout, timedelta) else timedelta(seconds=float(timeout))


register()
