"""The address under which the other ranks reach this process."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from ipaddress import ip_address
from typing import Any

import torch.distributed as dist

_SIOCGIFADDR = 0x8915
#: Nothing is sent there (RFC 5737): the kernel is only asked which way it would go.
_SOMEWHERE_ELSE = "192.0.2.1"
_ANY_PORT = 9


def own_address(store: Any) -> str:
    """Numeric IP address of this host that other ranks of the job can be expected to reach.

    That of the interface in GLOO_SOCKET_IFNAME, if that is set; else of the one that leads to
    the job's store (MASTER_ADDR), whose host all ranks reach. A host may know itself as
    127.0.1.1 though others do not: then of the one that leads out.

    Raises:
        OSError: there is none.
    """
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if interface:
        return interface_address(interface)
    host = _store_host(store)
    address = _towards(host or _SOMEWHERE_ELSE)
    if ip_address(address).is_loopback and not _means_this_host_only(host):
        return _towards(_SOMEWHERE_ELSE)
    return address


def _store_host(store: Any) -> str:
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return str(getattr(store, "host", "") or os.environ.get("MASTER_ADDR", ""))


def _means_this_host_only(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False  # a name


def interface_address(name: str) -> str:
    """The IPv4 address of a network interface.

    Raises:
        OSError: it has none.
    """
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
    return socket.inet_ntoa(answer[20:24])


def _towards(host: str) -> str:
    """The address from which this host would send to that one."""
    failed: OSError | None = None
    for family, kind, protocol, _, target in socket.getaddrinfo(
        host, _ANY_PORT, type=socket.SOCK_DGRAM
    ):
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)
                return str(probe.getsockname()[0])
        except OSError as error:  # IPv6 may be switched off
            failed = error
    raise failed or OSError(f"no address of {host}")
