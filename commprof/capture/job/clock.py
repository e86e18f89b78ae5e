"""Compares this rank's clock with rank 0's, where they are not the same.

The native module measures, on threads of its own; here ranks agree on who asks whom. That goes
through the store of the default process group, without any collective: rank 0 opens a door and
writes down where it is, the others look for it.
"""

from __future__ import annotations

import json
import os
import secrets
from typing import Any

import torch.distributed as dist

from commprof import _native
from commprof.address import own_address
from commprof.capture.job.metadata import clock_identity
from commprof.capture.job.store_link import StoreLink, default_store


class ClockLink(StoreLink):
    """One capture's part. Every method is for the training thread, none ever raises."""

    def __init__(self, chosen: str) -> None:
        """chosen: ``RankSettings.clock``."""
        super().__init__(chosen != "off")
        self._always = chosen == "always"
        self._following = False

    def stop(self) -> None:
        """Compares a last time, 0.8 s at most. Call it before the trace is closed."""
        self.pending = False
        if self._following and _native.native is not None:
            _native.native.clock_unfollow()
            self._following = False

    def agreed(self) -> bool:
        """One try; whether everything is said."""
        rank, world_size = dist.get_rank(), dist.get_world_size()
        if world_size == 1 or (on_one_host(world_size) and not self._always):
            return True
        store = default_store("commprof_clock")
        if rank == 0:
            _note_same_clock()
            store.set("door", json.dumps(_open_door(store, world_size)))
            return True
        if _native.native is None:
            return True
        if not store.check(["door"]):
            return False
        door = json.loads(store.get("door"))
        same = door["clock"] == clock_identity() and any(door["clock"])
        if door["port"] and (self._always or not same):
            _native.native.clock_follow(door["address"], door["port"], door["token"], rank)
            self._following = True
        elif same:
            _note_same_clock()
        return True


def _open_door(store: Any, world_size: int) -> dict[str, Any]:
    """Where rank 0 answers; port 0 if it cannot, so that nobody goes on looking."""
    door = {"address": "", "port": 0, "token": 0, "clock": clock_identity()}
    try:
        address = own_address(store)
        if _native.native is not None:
            token = secrets.randbits(63) | 1
            port, token = _native.native.clock_serve(address, token, world_size)
            door |= {"address": address, "port": port, "token": token}
    except (RuntimeError, OSError, ValueError):
        pass
    return door


def _note_same_clock() -> None:
    if _native.native is not None:
        _native.native.clock_same()


def on_one_host(world_size: int) -> bool:
    """Whether one launcher started all ranks: then they have one clock."""
    return os.environ.get("LOCAL_WORLD_SIZE") == str(world_size)
