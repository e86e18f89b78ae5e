"""Connections of their own for a compressor's messages, besides its process group."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from commprof import _native, variables
from commprof.address import own_address

#: How long ranks that have just told each other where they are wait for each other.
_PATIENCE_S = 10.0


class Connections:
    """Of the ranks of one process group."""

    def __init__(self, group: dist.ProcessGroup, names: Sequence[int], timeout: timedelta) -> None:
        """Connects nothing yet.

        Args:
            group: on CPU tensors; all its ranks call the methods here together.
            names: what messages call its ranks, by rank.
            timeout: after which a rank that moves nothing is taken to be gone.
        """
        self._group = group
        self._names = list(names)
        self._timeout = timeout
        self._mesh: Any = None
        self._state = "new"

    def mesh(self) -> Any:
        """A ``Mesh`` between the ranks; None on all of them, with a warning, if there can be none.

        The same as before as long as it works on all ranks.
        """
        if self._mesh is not None and not self._mesh.usable:
            self._mesh, self._state = None, "broken"
        if set(self._everybodys(self._state)) not in ({"connected"}, {"impossible"}):
            self._mesh, self._state = None, "broken"
            self._mesh = self._connected()
            self._state = "impossible" if self._mesh is None else "connected"
        return self._mesh

    def _connected(self) -> Any:
        listener, endpoint, problem = None, "", ""
        try:
            if variables.SOCKETS.value() == "on":
                listener = _native.native.Listener(own_address(self._store()))
                endpoint = listener.endpoint
        except (OSError, RuntimeError, ValueError) as error:
            problem = str(error)
        endpoints = self._everybodys(endpoint)
        mesh = None
        if all(endpoints):
            assert listener is not None
            try:
                mesh = listener.connect(
                    self._group.rank(),
                    endpoints,
                    self._names,
                    _PATIENCE_S,
                    self._timeout.total_seconds(),
                )
            except (RuntimeError, ValueError, MemoryError) as error:
                problem = str(error)
        problems = self._everybodys(problem)
        if not any(problems):
            return mesh
        if self._group.rank() == 0:
            first = next(rank for rank, text in enumerate(problems) if text)
            warnings.warn(
                "commprof: compressors exchange through gloo, which is slower, because of rank "
                f"{self._names[first]}: {problems[first]} ({variables.SOCKETS}=off asks for it, "
                "without this warning)",
                stacklevel=2,
            )
        return None

    def _store(self) -> Any:
        return dist.distributed_c10d._get_process_group_store(self._group)

    def _everybodys(self, own: Any) -> list[Any]:
        """What each rank says, by rank."""
        everyone: list[Any] = [None] * self._group.size()
        dist.all_gather_object(everyone, own, group=self._group)
        return everyone
