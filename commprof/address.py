"""Finds the address under which the other ranks reach this process."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from ipaddress import ip_address
from typing import Any

import torch.distributed as dist

_SIOCGIFADDR = 0x8915
#: No host has this address (RFC 5737), so the kernel chooses the default route for it. Nothing is
#: sent to this address.
_SOMEWHERE_ELSE = "192.0.2.1"
_ANY_PORT = 9


def own_address(store: Any) -> str:
    """Returns a numeric IP address of this host that the other ranks can be expected to reach.

    The address belongs to one of these interfaces:

    - the interface in GLOO_SOCKET_IFNAME, if this variable is set
    - else the interface that leads to the host of the job's store (MASTER_ADDR)
    - the interface of the default route, if the store's host is not known, or resolves its own name
      to a loopback address such as 127.0.1.1

    Raises:
        OSError: this host has no such address.
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
        return False  # a name, not an IP address


def interface_address(name: str) -> str:
    """Returns the IPv4 address of a network interface.

    Raises:
        OSError: the interface has no IPv4 address.
    """
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
    return socket.inet_ntoa(answer[20:24])


def _towards(host: str) -> str:
    """Returns the address from which this host would send to ``host``."""
    failed: OSError | None = None
    for family, kind, protocol, _, target in socket.getaddrinfo(
        host, _ANY_PORT, type=socket.SOCK_DGRAM
    ):
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)
                return str(probe.getsockname()[0])
        except OSError as error:  # for example, IPv6 is switched off
            failed = error
    raise failed or OSError(f"the name {host} has no IP address")
