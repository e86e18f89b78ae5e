"""Rendezvous of the launchers of one or several machines."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass, replace
from typing import Any

from commprof.errors import UsageError

_TIMEOUT_S = 900  # seconds within which the launchers of all machines must join


@dataclass(frozen=True)
class Rendezvous:
    """Rendezvous of all machines' launchers; raises UsageError if its numbers are out of range."""

    endpoint: str | None = None
    """HOST:PORT of the first machine; None: a free port of this machine."""
    nodes: int = 1
    """Number of machines, each with its own launcher."""
    node_rank: int = 0
    """Index of this machine, from 0. Machine 0 hosts the endpoint and prints the report."""

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise UsageError(f"--nnodes {self.nodes} is out of range (allowed: 1 or more)")
        if not 0 <= self.node_rank < self.nodes:
            raise UsageError(
                f"--node-rank {self.node_rank} is out of range (allowed: 0 to {self.nodes - 1})"
            )
        if self.nodes > 1 and self.endpoint is None:
            raise UsageError(
                "--nnodes needs --rdzv-endpoint HOST:PORT with an address of the machine that has "
                "--node-rank 0; give the same endpoint on all machines"
            )

    @property
    def is_first(self) -> bool:
        """True if this machine writes the run's files and prints the report."""
        return self.node_rank == 0

    def check(self, world_size: int) -> None:
        """Raises UsageError if machines get unequal numbers of ranks, or the port is unusable."""
        if world_size % self.nodes:
            raise UsageError(
                f"{world_size} ranks cannot be divided equally among {self.nodes} machines; for "
                f"--world-sizes, give multiples of {self.nodes}"
            )
        if self.endpoint is not None:
            host, port = endpoint_parts(self.endpoint)
            if self.is_first:
                _check_free(host, port, self.nodes)

    def turn(self, number: int) -> Rendezvous:
        """Returns the rendezvous of the launch with index ``number``, from 0.

        With several machines, each launch of a command uses another port.
        """
        if self.nodes == 1 or self.endpoint is None:
            return self
        host, port = endpoint_parts(self.endpoint)
        return replace(self, endpoint=f"{host}:{port + number}")

    def launch_config(self, world_size: int) -> dict[str, Any]:
        """Returns the arguments of torch's ``LaunchConfig`` for this rendezvous."""
        common = {
            "min_nodes": self.nodes,
            "max_nodes": self.nodes,
            "nproc_per_node": world_size // self.nodes,
        }
        if self.nodes == 1:
            return {
                **common,
                # The default is the host's name, and torch waits minutes if that name has no
                # address.
                "local_addr": "localhost",
                "run_id": f"commprof-{os.getpid()}",
                "rdzv_backend": "c10d",
                "rdzv_endpoint": self.endpoint or "localhost:0",
                "rdzv_configs": {"is_host": True},
            }
        return {
            **common,
            "run_id": f"commprof-{world_size}",
            "rdzv_backend": "static",  # numbers ranks in the order of the machines
            "rdzv_endpoint": self.endpoint,
            "rdzv_configs": {"rank": self.node_rank, "timeout": _TIMEOUT_S},
        }


@dataclass(frozen=True)
class StartedRendezvous(Rendezvous):
    """Rendezvous of ranks that another launcher started and numbered."""

    def check(self, world_size: int) -> None:
        """Does nothing, because the launcher has checked the world size."""


ALONE = Rendezvous()
"""Rendezvous of a single machine, at any free port."""


def endpoint_parts(endpoint: str) -> tuple[str, int]:
    """Splits an endpoint into host and port. Raises UsageError if it is not HOST:PORT."""
    host, _, port = endpoint.rpartition(":")
    good = bool(host) and _may_name_host(host)
    if not good or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(
            f"endpoint {endpoint!r} is not HOST:PORT (allowed: a name or address of the first "
            "machine and a port from 1 to 65535), e.g. localhost:29500"
        )
    return host, int(port)


def _may_name_host(text: str) -> bool:
    """False if the text, such as ``a..b``, cannot be the name or address of a host."""
    try:
        text.encode("idna")  # as socket.getaddrinfo does
    except UnicodeError:
        return False
    return True


def _check_free(host: str, port: int, nodes: int) -> None:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, _, _, address = addresses[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            # Only a single machine can use any free port.
            more = ", or leave --rdzv-endpoint out to get a free one"
            if nodes > 1:
                more = ", the same on all machines"
            raise UsageError(
                f"port {port} is in use on {host}; choose another port{more}"
            ) from None
        raise UsageError(
            f"endpoint '{host}:{port}' cannot be opened on this machine: {error}"
        ) from None
