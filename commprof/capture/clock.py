"""Compares this rank's clock with rank 0's, where they are not the same.

The native module measures, on threads of its own; here ranks agree on who asks whom. That goes
through the store of the default process group, without any collective: rank 0 opens a door and
writes down where it is, the others look for it. Capture may start before the group exists, so
the group is looked for when capture starts and at the end of each step.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from typing import Any

import torch.distributed as dist

from commprof import _native
from commprof.capture.address import own_address
from commprof.capture.metadata import clock_identity
from commprof.errors import CommprofError

#: ``auto`` compares clocks that are not the same one, ``always`` all, ``off`` none.
VARIABLE = "COMMPROF_CLOCK"
_MODES = ("auto", "always", "off")

#: How long the start of capture waits for rank 0 to be there.
_WAIT_S = 0.5
_POLL_S = 0.01
#: Later a look costs one exchange with the store: not more often than this, not more than so often.
_LATER_S = 0.1
_LOOKS = 100


def mode() -> str:
    """What the environment asks for.

    Raises:
        CommprofError: it asks for something else.
    """
    value = os.environ.get(VARIABLE, "auto")
    if value not in _MODES:
        raise CommprofError(f"{VARIABLE}={value} is none of {', '.join(_MODES)}")
    return value


class ClockLink:
    """One capture's part. Every method is for the training thread, none ever raises."""

    def __init__(self, chosen: str) -> None:
        """``chosen`` is a :func:`mode`."""
        #: Whether there is something left to do; see :meth:`look`.
        self.pending = chosen != "off"
        self._always = chosen == "always"
        self._following = False
        self._looks = 0
        self._not_before = 0.0

    def start(self) -> None:
        """Begins; waits half a second at most for rank 0, which as a rule is there already."""
        until = time.monotonic() + _WAIT_S
        while self.pending and dist.is_initialized() and time.monotonic() < until:
            self._look()
            if self.pending:
                time.sleep(_POLL_S)

    def look(self) -> None:
        """Tries again where the group, or rank 0, was not there before. Call it while pending."""
        now = time.monotonic()
        if now < self._not_before or not dist.is_initialized():
            return
        self._not_before = now + _LATER_S
        self._looks += 1
        self._look()
        if self._looks >= _LOOKS:
            self.pending = False  # rank 0 does not record

    def stop(self) -> None:
        """Compares a last time, 0.8 s at most. Call it before the trace is closed."""
        self.pending = False
        if self._following and _native.native is not None:
            _native.native.clock_unfollow()
            self._following = False

    def _look(self) -> None:
        try:
            self.pending = not self._agreed()
        except (RuntimeError, OSError, ValueError, KeyError, TypeError, AttributeError):
            # A store that is gone or of another kind, no address, no socket: offsets stay unknown.
            self.pending = False

    def _agreed(self) -> bool:
        """One try; whether everything is said."""
        rank, world_size = dist.get_rank(), dist.get_world_size()
        if world_size == 1 or (_on_one_host(world_size) and not self._always):
            return True
        store = _store()
        if rank == 0:
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
        return True


def _store() -> Any:
    """The default group's store, under a prefix of our own."""
    return dist.PrefixStore("commprof_clock", dist.distributed_c10d._get_default_store())


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


def _on_one_host(world_size: int) -> bool:
    """Whether one launcher started all ranks: then they have one clock."""
    return os.environ.get("LOCAL_WORLD_SIZE") == str(world_size)
