"""What the kernel counted on the interfaces against what the collectives must send."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from commprof.analysis.align.interfaces import (
    LOOPBACK,
    host_of,
    outward_interface,
    sent_by_interface,
)
from commprof.analysis.checks.figure_checks import (
    SAME_BYTES,
    CrossCheck,
    compared,
    missing,
    undecided,
)
from commprof.text import counted
from commprof.trace.reader import Trace

TRAFFIC = "headers and other traffic count too"
_WHAT = "bytes sent by the network interface"


def network_check(
    world_size: int, traces: Sequence[Trace], payload_bytes: Sequence[float], note: str = TRAFFIC
) -> CrossCheck:
    """One check over all hosts; more than the payload is no disagreement.

    Args:
        world_size: of the job, all of whose ranks must be there.
        traces: of the ranks.
        payload_bytes: what each must send at least, in the same order; NaN where unknown.
        note: how the two differ by definition.
    """
    if len(traces) < world_size:
        return _missing("not all ranks left a trace")
    sent = [sent_by_interface(trace) for trace in traces]
    if not all(sent):
        return _missing("not every trace holds the interfaces' counters")
    if any(group.backend != "gloo" for trace in traces for group in trace.groups.values()):
        return _missing("a backend other than gloo need not use these interfaces")
    hosts: dict[tuple[str, str], list[dict[str, int]]] = {}
    for trace, counters in zip(traces, sent, strict=True):
        hosts.setdefault(host_of(trace), []).append(counters)
    names, total = set(), 0
    for members in hosts.values():
        # The ranks of a host share its counters: the one that captured longest speaks for all.
        counters = {name: max(of.get(name, 0) for of in members) for name in set().union(*members)}
        for name in _interfaces_used(counters, len(hosts), len(members)):
            names.add(name)
            total += counters[name]
    if not names:
        return _missing("no collective of this run needs one")
    payload = sum(payload_bytes)
    if math.isnan(payload):
        return _missing("it is not known what some collectives must send")
    label = f"bytes sent by {' and '.join(sorted(names))}, {counted(len(hosts), 'host')}"
    check = compared("network", label, "MB", payload / 1e6, total / 1e6, SAME_BYTES, note)
    return check if not check.difference > SAME_BYTES else undecided(check)


def _interfaces_used(sent: Mapping[str, int], hosts: int, ranks_here: int) -> list[str]:
    """Where this host's ranks send: to each other through ``lo``, to others where most went."""
    used = [LOOPBACK] if ranks_here > 1 and LOOPBACK in sent else []
    outward = outward_interface(sent)
    if hosts > 1 and outward is not None:
        used.append(outward)
    return used


def _missing(reason: str) -> CrossCheck:
    return missing("network", _WHAT, "MB", reason)
