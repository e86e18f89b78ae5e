"""Reads host, network interfaces and DDP logs from a trace's metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from commprof.text import named_ranks
from commprof.trace.reader import Trace

#: A machine, and one of its network namespaces. Ranks of one host share network interfaces.
Host: TypeAlias = "tuple[str, str]"

LOOPBACK = "lo"
#: An idle interface sent at most this fraction of the bytes that the interface in use sent.
_NEARLY_NOTHING = 0.01
#: Bytes of the Ethernet header, and of the IP and TCP headers, in each segment.
_ETHERNET, _IP_AND_TCP = 14, 52


def cross_check_sources(trace: Trace) -> Mapping[str, Any]:
    """Returns interface counters, interface rates and DDP logs that this trace's capture wrote."""
    return own_metadata(trace, "cross_check_sources")


def ddp_logs(trace: Trace) -> list[Mapping[str, Any]]:
    """Returns DDP's log of each model that was trained while capture ran."""
    found = cross_check_sources(trace).get("ddp_logs")
    return [log for log in found if isinstance(log, Mapping)] if isinstance(found, list) else []


def trained_no_ddp(trace: Trace) -> bool:
    """True if it is known that no DDP model was trained while capture ran.

    For a killed rank, and in another profiler's recording, this is not known.
    """
    found = cross_check_sources(trace)
    return found.get("ddp_logs") == [] and not found.get("ddp_models")


def logged_bucket_sizes(log: Mapping[str, Any], key: str) -> list[int]:
    """Returns the bucket sizes in bytes under ``key`` of DDP's log; empty if there are none."""
    return [int(size) for size in str(log.get(key) or "").split(",") if size.strip().isdecimal()]


def own_metadata(trace: Trace, key: str) -> Mapping[str, Any]:
    """Returns the metadata that this trace's own capture wrote under ``key``; else empty.

    A trace may inherit metadata from an earlier capture of the same process. Such metadata is left
    out.
    """
    found = trace.metadata.get(key)
    if not isinstance(found, dict):
        return {}
    begin_ns = found.get("begin_monotonic_ns")
    mine = isinstance(begin_ns, int) and begin_ns >= trace.metadata["clock"]["monotonic_ns"]
    return found if mine else {}


def sent_by_interface(trace: Trace) -> dict[str, int]:
    """Returns the bytes that each interface sent while capture ran; empty if not known."""
    interfaces = cross_check_sources(trace).get("interfaces")
    return {
        str(name): counters["sent_bytes"]
        for name, counters in (interfaces.items() if isinstance(interfaces, dict) else ())
        if isinstance(counters, dict) and isinstance(counters.get("sent_bytes"), int)
    }


def machine_of(trace: Trace) -> str:
    """Returns the kernel's boot ID of a rank's machine; if it is unknown, the hostname."""
    machine = trace.metadata["machine"]
    return str(machine["boot_id"] or machine["hostname"])


def host_of_each(traces: Sequence[Trace]) -> list[Host | None]:
    """Returns the host of each trace's rank; None if it is unknown.

    The trace of a killed rank may lack the network namespace, which older versions of commprof
    wrote at the end of capture. Such a rank gets the host of the machine's other ranks; None if
    these are on several hosts. If no rank of a machine names a namespace, all are on one host.
    """
    named = [(machine_of(trace), _network_namespace(trace)) for trace in traces]
    namespaces: dict[str, set[str]] = {}
    for machine, namespace in named:
        namespaces.setdefault(machine, set()).update({namespace} - {""})
    return [
        (machine, namespace or next(iter(namespaces[machine]), ""))
        if namespace or len(namespaces[machine]) < 2
        else None
        for machine, namespace in named
    ]


def _network_namespace(trace: Trace) -> str:
    """Returns a rank's network namespace; empty if unknown.

    An earlier capture may have written the namespace, because a process stays in one namespace.
    """
    return str(trace.metadata.get("cross_check_sources", {}).get("network_namespace") or "")


def unknown_hosts(traces: Sequence[Trace], hosts: Sequence[Host | None]) -> str:
    """Returns a sentence naming the ranks whose host is unknown; empty if there are none."""
    lost = [trace.rank for trace, host in zip(traces, hosts, strict=True) if host is None]
    return f"the host of {named_ranks(lost)} is not known" if lost else ""


def header_share(trace: Trace, interface: str) -> float:
    """Returns header bytes per payload byte of segments that fill the MTU; NaN without an MTU.

    A segment has 66 bytes of headers: Ethernet 14, IPv4 20, TCP 20, TCP timestamps 12. The MTU
    includes all but the Ethernet header. The result is 4.6 % for an MTU of 1500 bytes, and 0.7 %
    for 9000.
    """
    found = cross_check_sources(trace).get("mtu_bytes")
    mtu = found.get(interface) if isinstance(found, dict) else None
    if not isinstance(mtu, int) or mtu <= _IP_AND_TCP:
        return math.nan
    return (_ETHERNET + _IP_AND_TCP) / (mtu - _IP_AND_TCP)


def idle_interfaces(trace: Trace, used: str | None) -> set[str]:
    """Returns interfaces that sent nearly nothing and are not known to be slower than ``used``.

    ``used`` is the interface that carried the traffic; if it is None, the result is empty.
    Interfaces without an IPv4 address, and bridges, are left out. If one of the two rated speeds is
    unknown, an interface counts as fast enough.
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
    """Returns the interface over which most bytes left the host; None if only lo was counted."""
    outward = [name for name in sent if name != LOOPBACK]
    return max(outward, key=lambda name: sent[name]) if outward else None
