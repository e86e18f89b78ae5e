"""Brings ranks together, so that always-on mode can tell who came last.

The first rank of a host to come by makes memory (``csrc/always_on/arrivals/arrival_board.h``) and
writes down where it is; the others open it. Where the job has other hosts, this first rank also
carries arrivals to and from theirs (``csrc/always_on/hosts/arrival_carrier.h``). From then on
only helper threads use any of it.
"""

from __future__ import annotations

import json
import os
import secrets
import weakref
from typing import Any

import torch.distributed as dist

from commprof import _native
from commprof.address import own_address
from commprof.capture.job.clock import on_one_host
from commprof.capture.job.metadata import clock_identity
from commprof.capture.job.store_link import StoreLink, default_store


class ArrivalLink(StoreLink):
    """One capture's part in it."""

    def __init__(self) -> None:
        """Without the native module there is nothing to agree on."""
        super().__init__(_native.native is not None)

    def agreed(self) -> bool:
        """Meets the others, unless they have met before."""
        native, group = _native.native, dist.group.WORLD
        if native is None or dist.get_world_size() == 1:
            return True
        if not _meetings or _meetings[0].group() is not group:
            _meetings[:] = [_Meeting(native, group)]
        return _meetings[0].agreed()

    def stop(self) -> None:
        """Tells other hosts what they have not been told yet. Call it after the trace is closed."""
        self.pending = False
        if _native.native is not None:
            _native.native.arrivals_flush()


class _Meeting:
    """What this rank has agreed on with the others of a process group; it outlives a capture.

    It keeps neither the group nor its store alive: a store's server that outlives
    ``destroy_process_group`` would tell the next group of this one's ranks.
    """

    def __init__(self, native: Any, group: object) -> None:
        self.group = weakref.ref(group)
        self._native = native
        identity = [*clock_identity(), os.readlink("/proc/self/ns/pid")]
        self._has_identity = all(identity)
        self._host_prefix = "commprof_arrivals/" + "/".join(identity)
        self._is_first: bool | None = None
        self._has_board = False
        #: Of the hosts that have a number: up to which this one knows them, and its own.
        self._known_hosts = 0
        self._number = 0

    def agreed(self) -> bool:
        """One try; whether everything is said."""
        if not self._has_identity:
            return True
        job = default_store("commprof_arrivals")
        if not self._has_board and not self._meet_on_this_host(job):
            return False
        return self._number == 0 or self._meet_hosts(job)

    def _meet_on_this_host(self, job: Any) -> bool:
        host = default_store(self._host_prefix)
        if self._is_first is None:
            self._is_first = host.add("ranks", 1) == 1
        if self._is_first:
            board = _make_board(self._native)
            if board["token"] and not on_one_host(dist.get_world_size()):
                self._number = self._begin_to_carry(job)
            host.set("board", json.dumps(board))
        elif not host.check(["board"]):
            return False
        else:
            board = json.loads(host.get("board"))
            if board["token"]:
                self._native.arrivals_open(board["path"], board["token"], dist.get_rank())
        self._has_board = True
        job.add("ranks", 1)
        return True

    def _begin_to_carry(self, job: Any) -> int:
        """This host's number; what stands under it has port 0 where it cannot be reached."""
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

    def _meet_hosts(self, job: Any) -> bool:
        """Looks for hosts that have come since; whether all ranks of the job have."""
        all_came = int(job.add("ranks", 0)) >= dist.get_world_size()
        hosts = int(job.add("hosts", 0))
        while self._known_hosts < hosts:
            key = f"host/{self._known_hosts + 1}"
            if not job.check([key]):
                return False
            self._known_hosts += 1
            there = json.loads(job.get(key))
            if self._known_hosts != self._number and there["port"]:
                self._native.arrivals_peer(there["address"], there["port"], there["token"])
        return all_came


#: That of the default group, which is the latest.
_meetings: list[_Meeting] = []
os.register_at_fork(after_in_child=_meetings.clear)


def _make_board(native: Any) -> dict[str, Any]:
    """Where it is; token 0 if there can be none, so that nobody goes on looking."""
    token = secrets.randbits(63) | 1
    try:
        descriptor = native.arrivals_create(token, dist.get_rank())
    except OSError:
        return {"path": "", "token": 0}
    return {"path": f"/proc/{os.getpid()}/fd/{descriptor}", "token": token}
