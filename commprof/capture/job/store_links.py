"""Connects ranks through the default group's store, to compare clocks and to share arrivals.

Arrivals are the times at which ranks issued each collective. The default group may not exist yet
when capture starts. So capture tries to connect at its start, and again after training steps.

The native module compares clocks on its own threads. Rank 0 writes its address into the store, and
the other ranks read the address.
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
#: Minimum time between two tries after steps, and maximum number of these tries.
_LATER_S = 0.1
_LOOKS = 100
#: Hosts form a tree. This is the maximum number of hosts that send arrivals to the same parent.
_CHILDREN = 16
#: Hosts that replace the tree's root, host 1, if the root does not answer; in order of preference.
_STAND_INS = (2, 3)


class StoreLink(ABC):
    """A connection to other ranks, made through the store; ``start`` and ``poll`` never raise."""

    def __init__(self, pending: bool) -> None:
        """``pending``: True if this rank should try to connect."""
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
        """Tries to connect again; call it at the end of each step while ``pending`` is True."""
        now = time.monotonic()
        if now < self._not_before or not dist.is_initialized():
            return
        self._not_before = now + _LATER_S
        self._polls += 1
        self._poll()
        if self._polls >= _LOOKS:
            self.pending = False  # the other rank probably does not record

    @abstractmethod
    def agreed(self) -> bool:
        """Tries once to connect; returns True if this rank need not try again."""

    def _poll(self) -> None:
        try:
            self.pending = not self.agreed()
        except Exception:
            # Training must go on without the connection, for example if the store is gone.
            self.pending = False


def default_store(prefix: str) -> Any:
    """Returns the default group's store with a prefix for its keys."""
    return dist.PrefixStore(prefix, dist.distributed_c10d._get_default_store())


class ClockLink(StoreLink):
    """Compares this rank's clock with the clock of rank 0."""

    def __init__(self, chosen: str) -> None:
        """``chosen``: value of ``RankSettings.clock``."""
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
        """Starts the clock server on rank 0, or connects to it; True if no other try is needed."""
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
    """Starts the clock server, and returns its address; port 0 means that the start failed."""
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
    """True if one launcher started all ranks on this host."""
    return os.environ.get("LOCAL_WORLD_SIZE") == str(world_size)


class ArrivalLink(StoreLink):
    """Connects this rank with the other ranks to share arrivals in always-on mode."""

    def __init__(self) -> None:
        """Makes a link; it never connects if the native module is missing."""
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
    """Connects the ranks of a host to a board, and connects the hosts to each other.

    A board is memory that the ranks of a host share. This object must not keep the group's store
    alive after ``destroy_process_group``: the next group would then read the old entries.
    """

    def __init__(self, native: Any, group: object) -> None:
        self.group = weakref.ref(group)
        self._native = native
        identity = [*clock_identity(), os.readlink("/proc/self/ns/pid")]
        self._has_identity = all(identity)
        self._host_prefix = "commprof_arrivals/" + "/".join(identity)
        self._is_first: bool | None = None
        self._has_board = False
        #: Indices, from 1, of the hosts whose addresses this rank must still read from the store.
        self._parents: list[int] = []

    def agreed(self) -> bool:
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
        """Starts sharing arrivals with other hosts, and writes this host's address into ``job``.

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
        """Connects to this host's parents in the tree; False while an address is missing."""
        while self._parents:
            key = f"host/{self._parents[0]}"
            if not job.check([key]):
                return False
            host, there = self._parents.pop(0), json.loads(job.get(key))
            if there["port"]:
                self._native.arrivals_peer(host, there["address"], there["port"], there["token"])
        return True


def possible_parents(host: int) -> list[int]:
    """Returns the hosts to which a host may send its arrivals, in order of preference.

    The first is the host's parent in the tree, then the parent's parent, and so on up to the root.
    The last are the hosts that replace a root that does not answer. The result is empty for the
    root, which is host 1, and for 0, which means no host.
    """
    above = []
    number = host
    while number > 1:
        number = (number - 2) // _CHILDREN + 1
        above.append(number)
    return above + [number for number in _STAND_INS if number < host and number not in above]


#: Holds the rendezvous of the current default group, or nothing.
_meetings: list[_BoardRendezvous] = []
os.register_at_fork(after_in_child=_meetings.clear)


def _ranks_per_host() -> int:
    given = os.environ.get("LOCAL_WORLD_SIZE", "")
    return min(dist.get_world_size(), int(given) if given.isdigit() else 8)


def _make_board(native: Any) -> dict[str, Any]:
    """Makes this host's board; returns the path of the board and the token that opens it.

    The token is 0 if the board cannot be made.
    """
    token = secrets.randbits(63) | 1
    try:
        descriptor = native.arrivals_create(token, dist.get_rank(), _ranks_per_host())
    except OSError:
        return {"path": "", "token": 0}
    return {"path": f"/proc/{os.getpid()}/fd/{descriptor}", "token": token}
