"""Brings the ranks of one host together, so that always-on mode can tell who came last.

The first rank of a host to come by makes memory (``csrc/core/always_on/arrival_board.h``) and
writes down where it is; the others open it. From then on only the helper threads use it.
"""

from __future__ import annotations

import json
import os
import secrets
from typing import Any

import torch.distributed as dist

from commprof import _native
from commprof.capture.metadata import clock_identity
from commprof.capture.store_link import StoreLink, default_store

#: The group whose ranks of this host have met: what they share outlives a capture.
_met: list[object] = []
os.register_at_fork(after_in_child=_met.clear)


class ArrivalLink(StoreLink):
    """One capture's part in it."""

    def __init__(self) -> None:
        """Without the native module there is nothing to agree on."""
        super().__init__(_native.native is not None)
        self._is_first: bool | None = None

    def agreed(self) -> bool:
        """Meets the others, unless they have met before."""
        native, group = _native.native, dist.group.WORLD
        if native is None or dist.get_world_size() == 1 or group in _met:
            return True
        identity = [*clock_identity(), os.readlink("/proc/self/ns/pid")]
        if not all(identity):
            return True
        store = default_store("commprof_arrivals/" + "/".join(identity))
        if self._is_first is None:
            self._is_first = store.add("ranks", 1) == 1
        if self._is_first:
            store.set("board", json.dumps(_make_board(native)))
        elif not store.check(["board"]):
            return False
        else:
            board = json.loads(store.get("board"))
            if board["token"]:
                native.arrivals_open(board["path"], board["token"], dist.get_rank())
        _met[:] = [group]
        return True


def _make_board(native: Any) -> dict[str, Any]:
    """Where it is; token 0 if there can be none, so that nobody goes on looking."""
    token = secrets.randbits(63) | 1
    try:
        descriptor = native.arrivals_create(token, dist.get_rank())
    except OSError:
        return {"path": "", "token": 0}
    return {"path": f"/proc/{os.getpid()}/fd/{descriptor}", "token": token}
