"""What a trace says of its host and of the network interfaces there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from commprof.trace.reader import Trace

#: Of a host to itself; all other interfaces lead outward.
LOOPBACK = "lo"
#: Over what the interface in use sent.
_NEARLY_NOTHING = 0.01
#: Bytes of headers per segment.
_ETHERNET, _IP_AND_TCP = 14, 52


def cross_check_sources(trace: Trace) -> Mapping[str, Any]:
    """Returns what the kernel and DDP counted while this trace was written."""
    return own_metadata(trace, "cross_check_sources")


def ddp_logs(trace: Trace) -> list[Mapping[str, Any]]:
    """Returns what DDP logged of each model that was trained while capture ran."""
    found = cross_check_sources(trace).get("ddp_logs")
    return [log for log in found if isinstance(log, Mapping)] if isinstance(found, list) else []


def logged_bucket_sizes(log: Mapping[str, Any], key: str) -> list[int]:
    """Returns the sizes of buckets in bytes under this key of DDP's log; empty without any."""
    return [int(size) for size in str(log.get(key) or "").split(",") if size.strip().isdecimal()]


def own_metadata(trace: Trace, key: str) -> Mapping[str, Any]:
    """Returns what this capture noted under a key, not what an earlier one of the process did."""
    found = trace.metadata.get(key)
    if not isinstance(found, dict):
        return {}
    begin_ns = found.get("begin_monotonic_ns")
    mine = isinstance(begin_ns, int) and begin_ns >= trace.metadata["clock"]["monotonic_ns"]
    return found if mine else {}


def sent_by_interface(trace: Trace) -> dict[str, int]:
    """Bytes that each interface of the host sent while capture ran; empty if not known."""
    interfaces = cross_check_sources(trace).get("interfaces")
    return {
        str(name): counters["sent_bytes"]
        for name, counters in (interfaces.items() if isinstance(interfaces, dict) else ())
        if isinstance(counters, dict) and isinstance(counters.get("sent_bytes"), int)
    }


def host_of(trace: Trace) -> tuple[str, str]:
    """Tells hosts apart by boot and network namespace: equal ones share their interfaces."""
    boot = str(trace.metadata["machine"]["boot_id"])
    return boot, str(cross_check_sources(trace).get("network_namespace"))


def header_share(trace: Trace, interface: str) -> float:
    """Headers over payload in full segments of the interface's MTU; NaN if that is not known.

    Of 66 bytes: Ethernet 14, IPv4 20, TCP 20 and its timestamps 12; all but the first lie within
    the MTU. At 1500 bytes 4.6 %, at 9000 0.7 %.
    """
    found = cross_check_sources(trace).get("mtu_bytes")
    mtu = found.get(interface) if isinstance(found, dict) else None
    if not isinstance(mtu, int) or mtu <= _IP_AND_TCP:
        return math.nan
    return (_ETHERNET + _IP_AND_TCP) / (mtu - _IP_AND_TCP)


def idle_interfaces(trace: Trace, used: str | None) -> set[str]:
    """Interfaces of the host that carried nearly nothing and are rated no slower than ``used``.

    Those with an address of their own; where the kernel knows no rate, they are taken in.
    """
    sent, rated = sent_by_interface(trace), cross_check_sources(trace).get("rated_mbit_per_s")
    if used is None or not isinstance(rated, dict):
        return set()
    return {
        name
        for name in rated
        if sent.get(name, 0) <= _NEARLY_NOTHING * sent[used]
        and (not rated[name] or not rated.get(used) or rated[name] >= rated[used])
    }


def outward_interface(sent: Mapping[str, int]) -> str | None:
    """Interface over which most bytes left the host; None without one."""
    outward = [name for name in sent if name != LOOPBACK]
    return max(outward, key=lambda name: sent[name]) if outward else None
