"""Connects ranks through the default group's store, to compare clocks and to share arrivals.

Arrivals are the times at which ranks issued each collective. No collective is issued to connect.
Capture may start before the default group exists. So each capture tries to connect when it starts,
and tries again at the ends of training steps. The native module compares clocks on threads of its
own: rank 0 writes the address at which it answers into the store, and the other ranks read it.
"""

from __future__ import annotations

import json
import os
import secrets
import time
import weakref
from abc import ABC, abstractmethod
from typing import Any

import torch.distributed as dist

from commprof import _native
from commprof.address import own_address
from commprof.capture.job.metadata import clock_identity

#: How long capture waits at its start for another rank's entry in the store.
_WAIT_S = 0.5
_POLL_S = 0.01
#: Least time between two tries at the ends of steps, and the largest number of such tries. Each try
#: costs an exchange with the store.
_LATER_S = 0.1
_LOOKS = 100
#: Largest number of hosts that send their arrivals to the same host in the tree of hosts.
_CHILDREN = 16
#: Hosts that take the place of the tree's root, in this order, if the root does not answer. Hosts
#: are numbered from 1, and host 1 is the root.
_STAND_INS = (2, 3)


class StoreLink(ABC):
    """A connection to other ranks, made through the store; start() and poll() never raise."""

    def __init__(self, pending: bool) -> None:
        """``pending``: True if this rank should try to connect."""
        #: True while this rank should still try to connect; see :meth:`poll`.
        self.pending = pending
        self._polls = 0
        self._not_before = 0.0

    def start(self) -> None:
        """Tries to connect, for at most half a second."""
        until = time.monotonic() + _WAIT_S
        while self.pending and dist.is_initialized() and time.monotonic() < until:
            self._poll()
            if self.pending:
                time.sleep(_POLL_S)

    def poll(self) -> None:
        """Tries to connect again; call it at the end of each step while ``pending`` is True.

        Earlier tries fail if the default group or another rank does not exist yet.
        """
        now = time.monotonic()
        if now < self._not_before or not dist.is_initialized():
            return
        self._not_before = now + _LATER_S
        self._polls += 1
        self._poll()
        if self._polls >= _LOOKS:
            self.pending = False  # presumably the rank to connect to does not record

    @abstractmethod
    def agreed(self) -> bool:
        """Tries once to connect; returns True if this rank need not try again."""

    def _poll(self) -> None:
        try:
            self.pending = not self.agreed()
        except Exception:
            # The store may be gone or lack a method; an address, socket or file may be missing.
            # This rank then stays without the connection, but training must go on.
            self.pending = False


def default_store(prefix: str) -> Any:
    """Returns the default group's store with a prefix for its keys."""
    return dist.PrefixStore(prefix, dist.distributed_c10d._get_default_store())


class ClockLink(StoreLink):
    """Compares this rank's clock with rank 0's; its methods never raise."""

    def __init__(self, chosen: str) -> None:
        """chosen: value of ``RankSettings.clock``."""
        super().__init__(chosen != "off")
        self._always = chosen == "always"
        self._following = False

    def stop(self) -> None:
        """Compares clocks a last time, for at most 0.8 s; call it before the trace is closed."""
        self.pending = False
        if self._following and _native.native is not None:
            _native.native.clock_unfollow()
            self._following = False

    def agreed(self) -> bool:
        """Tries once to start or reach rank 0's clock server; True if no other try is needed."""
        rank, world_size = dist.get_rank(), dist.get_world_size()
        if world_size == 1 or (on_one_host(world_size) and not self._always):
            return True
        store = default_store("commprof_clock")
        if rank == 0:
            _note_same_clock()
            store.set("clock_server", json.dumps(_open_clock_server(store, world_size)))
            return True
        if _native.native is None:
            return True
        if not store.check(["clock_server"]):
            return False
        server = json.loads(store.get("clock_server"))
        same = server["clock"] == clock_identity() and any(server["clock"])
        if server["port"] and (self._always or not same):
            _native.native.clock_follow(server["address"], server["port"], server["token"], rank)
            self._following = True
        elif same:
            _note_same_clock()
        return True


def _open_clock_server(store: Any, world_size: int) -> dict[str, Any]:
    """Starts rank 0's clock server; returns its address, with port 0 if it did not start."""
    server = {"address": "", "port": 0, "token": 0, "clock": clock_identity()}
    try:
        address = own_address(store)
        if _native.native is not None:
            token = secrets.randbits(63) | 1
            port, token = _native.native.clock_serve(address, token, world_size)
            server |= {"address": address, "port": port, "token": token}
    except (RuntimeError, OSError, ValueError):
        pass
    return server


def _note_same_clock() -> None:
    if _native.native is not None:
        _native.native.clock_same()


def on_one_host(world_size: int) -> bool:
    """True if one launcher started all ranks, so that they have one clock."""
    return os.environ.get("LOCAL_WORLD_SIZE") == str(world_size)


class ArrivalLink(StoreLink):
    """Connects this rank with the other ranks to share arrivals in always-on mode.

    In that mode, capture keeps histograms instead of records.
    """

    def __init__(self) -> None:
        """Makes a link that is not connected yet.

        Without the native module, which exchanges the arrivals, ``pending`` is False, so that the
        link never tries to connect.
        """
        super().__init__(_native.native is not None)

    def agreed(self) -> bool:
        """Tries once to connect to the other ranks; returns True if no other try is needed."""
        native, group = _native.native, dist.group.WORLD
        if native is None or dist.get_world_size() == 1:
            return True
        if not _meetings or _meetings[0].group() is not group:
            _meetings[:] = [_BoardRendezvous(native, group)]
        return _meetings[0].agreed()

    def stop(self) -> None:
        """Sends the remaining arrivals to the other hosts; call it after the trace is closed."""
        self.pending = False
        if _native.native is not None:
            _native.native.arrivals_flush()


class _BoardRendezvous:
    """Connects a process group's ranks to their host's board of arrivals, and connects the hosts.

    A board is memory that the ranks of a host share; the hosts form a tree. The rendezvous outlives
    a capture, but keeps neither the group nor its store alive: a store's server that outlives
    ``destroy_process_group`` would serve this group's entries to the next group.
    """

    def __init__(self, native: Any, group: object) -> None:
        self.group = weakref.ref(group)
        self._native = native
        identity = [*clock_identity(), os.readlink("/proc/self/ns/pid")]
        self._has_identity = all(identity)
        self._host_prefix = "commprof_arrivals/" + "/".join(identity)
        self._is_first: bool | None = None
        self._has_board = False
        #: Indices (from 1) of hosts whose addresses this rank has yet to read from the store.
        self._parents: list[int] = []

    def agreed(self) -> bool:
        """Tries once to connect; returns True if another try is not needed or cannot succeed."""
        if not self._has_identity:
            return True
        job = default_store("commprof_arrivals")
        if not self._has_board and not self._meet_on_this_host(job):
            return False
        return self._meet_parents(job)

    def _meet_on_this_host(self, job: Any) -> bool:
        host = default_store(self._host_prefix)
        if self._is_first is None:
            self._is_first = host.add("ranks", 1) == 1
        if self._is_first:
            board = _make_board(self._native)
            if board["token"] and not on_one_host(dist.get_world_size()):
                self._parents = possible_parents(self._begin_to_carry(job))
            host.set("board", json.dumps(board))
        elif not host.check(["board"]):
            return False
        else:
            board = json.loads(host.get("board"))
            if board["token"]:
                self._native.arrivals_open(board["path"], board["token"], dist.get_rank())
        self._has_board = True
        return True

    def _begin_to_carry(self, job: Any) -> int:
        """Starts sharing arrivals with other hosts.

        Writes this host's address into ``job``, the store that the ranks of all hosts share.
        Returns this host's index, from 1; 0 on failure.
        """
        number = int(job.add("hosts", 1))
        here = {"address": "", "port": 0, "token": secrets.randbits(63) | 1}
        try:
            address = own_address(job)
            port = self._native.arrivals_carry(address, here["token"], number)
            here |= {"address": address, "port": port}
        except (RuntimeError, OSError, ValueError):
            pass
        job.set(f"host/{number}", json.dumps(here))
        return number if here["port"] else 0

    def _meet_parents(self, job: Any) -> bool:
        """Connects to the hosts above this one; returns True once all their addresses were read."""
        while self._parents:
            key = f"host/{self._parents[0]}"
            if not job.check([key]):
                return False
            host, there = self._parents.pop(0), json.loads(job.get(key))
            if there["port"]:
                self._native.arrivals_peer(host, there["address"], there["port"], there["token"])
        return True


def possible_parents(host: int) -> list[int]:
    """Returns the hosts to which a host may send its arrivals, the best first.

    Hosts have indices from 1 in a tree in which each host has at most 16 children. A host sends to
    its parent. If the parent does not answer, the host sends to the parent's parent, and so on up
    to the root, and then to the root's stand-ins. All of these have lower indices, and so exist
    already. Host 1 is the root; for it, and for 0 (no host), the result is empty.
    """
    above = []
    number = host
    while number > 1:
        number = (number - 2) // _CHILDREN + 1
        above.append(number)
    return above + [number for number in _STAND_INS if number < host and number not in above]


#: The rendezvous of the current default group, if there is one.
_meetings: list[_BoardRendezvous] = []
os.register_at_fork(after_in_child=_meetings.clear)


def _ranks_per_host() -> int:
    """Returns how many ranks the launcher started on this host; if unknown, 8.

    The result is never more than the world size.
    """
    given = os.environ.get("LOCAL_WORLD_SIZE", "")
    return min(dist.get_world_size(), int(given) if given.isdigit() else 8)


def _make_board(native: Any) -> dict[str, Any]:
    """Makes the memory in which this host's ranks share arrivals.

    Returns its ``path``, and the random ``token`` that a rank must present to open it. ``token`` is
    0 if the memory cannot be made.
    """
    token = secrets.randbits(63) | 1
    try:
        descriptor = native.arrivals_create(token, dist.get_rank(), _ranks_per_host())
    except OSError:
        return {"path": "", "token": 0}
    return {"path": f"/proc/{os.getpid()}/fd/{descriptor}", "token": token}
