"""Makes the process groups and connections through which compressors exchange gradients."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commprof import _native, variables
from commprof.address import own_address
from commprof.ddp_parameters import reduced
from commprof.tune.compressors.compressor import Compressor

#: Ranks wait this many seconds for each other's connections.
_PATIENCE_S = 10.0


def timeout_of(group: dist.ProcessGroup, device: torch.device) -> timedelta | None:
    """Returns a group's time-out for tensors of a device; None if it is unknown.

    Pass the result to ``new_group``, which otherwise uses the backend's default time-out.
    """
    backend = group._get_backend(device)
    return backend.options._timeout if hasattr(backend, "options") else None


class Connections:
    """Connections between the ranks of one process group."""

    def __init__(self, group: dist.ProcessGroup, names: Sequence[int], timeout: timedelta) -> None:
        """Stores the arguments; :meth:`mesh` connects the ranks.

        Args:
            group: a group for CPU tensors; all its ranks call the methods of this class together.
            names: rank numbers to print in messages, by rank in the group.
            timeout: time without progress after which a rank counts as gone.
        """
        self._group = group
        self._names = list(names)
        self._timeout = timeout
        self._mesh: Any = None
        self._state = "new"

    def mesh(self) -> Any:
        """Returns a ``Mesh`` between the ranks; None on all ranks if any rank cannot connect.

        Later calls return the same mesh as long as it works on all ranks.
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
                listener = _native.tune.Listener(own_address(self._store()))
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
                "commprof: compressors cannot use sockets because of rank "
                f"{self._names[first]}: {problems[first]}; they exchange through gloo, which is "
                f"slower (to use gloo without this warning, set {variables.SOCKETS}=off)",
                stacklevel=2,
            )
        return None

    def _store(self) -> Any:
        return dist.distributed_c10d._get_process_group_store(self._group)

    def _everybodys(self, own: Any) -> list[Any]:
        everyone: list[Any] = [None] * self._group.size()
        dist.all_gather_object(everyone, own, group=self._group)
        return everyone


@dataclass(frozen=True)
class ExchangeWay:
    """The group, shared memory and connections through which one compressor exchanges gradients."""

    group: dist.ProcessGroup | None
    """Ranks with which this rank exchanges; None if this rank leaves that to another rank."""
    team: Any = None
    """Shared memory in which this host's ranks first add up their gradients; None if all ranks
    exchange."""
    owners: int = 0
    """Number of ranks on each host that exchange with other hosts; 0 if ``team`` is None."""
    hosts: int = 0
    """Number of the model's hosts; 0 if ``team`` is None."""
    local_rank: int = 0
    """Index of this rank among the ranks of its host; 0 if ``team`` is None."""
    compresses: bool = True
    """False with ``hierarchical=1`` if all ranks are on one host: gradients are then added up in
    fp32, without compression."""
    mesh: Any = None
    """Socket connections between the ranks of ``group``, for all exchanges except all-reduces. None
    if all exchanges use ``group``."""


def compresses_natively(ddp: DistributedDataParallel) -> bool:
    """True if the native module compresses; False if it is missing or parameters are on a GPU."""
    on_cpu = all(parameter.device.type == "cpu" for _, parameter in reduced(ddp))
    return on_cpu and _native.tune_error is None


class Groups:
    """Process groups of one model. All ranks together make a group when it is first needed."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        """Makes no group yet."""
        self._model_group = ddp.process_group
        self._ranks = dist.get_process_group_ranks(self._model_group)
        self._groups: dict[str, dist.ProcessGroup] = {}
        self._connections: dict[dist.ProcessGroup, Connections] = {}
        self._between: ExchangeWay | None = None
        #: False if only torch operations can compress.
        self.native = compresses_natively(ddp)

    @property
    def all(self) -> dist.ProcessGroup:
        """The gloo group of all ranks of the model."""
        return self._group("gloo")

    def way(self, compressor: Compressor) -> ExchangeWay:
        """Chooses how a compressor exchanges gradients; all ranks must call this together."""
        if compressor.scheme == "hierarchical":
            return ExchangeWay(self._group("commprof"))
        if compressor.options.get("hierarchical"):
            if self._between is None:
                self._between = self._way_between_hosts()
            way = self._between
        else:
            way = ExchangeWay(self.all)
        if way.group is None or way.group.size() == 1 or not way.compresses:
            return way
        return dataclasses.replace(way, mesh=self._mesh(way.group))

    def _mesh(self, group: dist.ProcessGroup) -> Any:
        ranks = dist.get_process_group_ranks(group)
        names = [self._ranks.index(rank) for rank in ranks]  # ranks within the model's group
        if group not in self._connections:
            self._connections[group] = Connections(group, names, self._timeout)
        return self._connections[group].mesh()

    @property
    def _timeout(self) -> timedelta:
        return self.all._get_backend(torch.device("cpu")).options._timeout

    def _group(self, backend: str) -> dist.ProcessGroup:
        if backend not in self._groups:
            import commprof.tune.backend  # noqa: F401  registers "commprof"

            self._groups[backend] = self._new_group(self._ranks, backend)
        return self._groups[backend]

    def _new_group(self, ranks: list[int], backend: str) -> dist.ProcessGroup:
        # Ranks outside the model's group do not call this, so torch must not wait for them.
        local = len(ranks) < dist.get_world_size()
        return dist.new_group(
            ranks,
            timeout=timeout_of(self._model_group, torch.device("cpu")),
            backend=backend,
            use_local_synchronization=local,
            group_desc="commprof_compressor",
        )

    def _way_between_hosts(self) -> ExchangeWay:
        """Chooses how a hierarchical compressor exchanges; all ranks must call this together."""
        from commprof.tune import backend

        store = dist.PrefixStore(
            "commprof_hosts", dist.distributed_c10d._get_process_group_store(self.all)
        )
        hosts = backend.find_hosts(store, self._model_group.rank(), len(self._ranks))
        if hosts.all_alone:
            return ExchangeWay(self.all)
        if len(hosts.groups) == 1:
            return ExchangeWay(self._group("commprof"), compresses=False)
        team = backend.make_team(store, hosts, self._ranks, self._timeout)
        if team is None:
            return ExchangeWay(self.all)
        group = None
        if hosts.local_rank < hosts.owners:
            peers = [self._ranks[ranks[hosts.local_rank]] for ranks in hosts.groups]
            group = self._new_group(peers, "gloo")
        return ExchangeWay(group, team, hosts.owners, len(hosts.groups), hosts.local_rank)
