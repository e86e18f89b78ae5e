"""Checks the differences between the hosts' wall clocks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from commprof.analysis.checks.outcome import PASS, SKIP, WARN, Outcome
from commprof.checks.ranks import Ranks
from commprof.text import named_ranks

NAME = "clocks"
_PINGS = 20
#: The check warns if a clock differs from rank 0's by more than this.
_APART_MS = 10.0
#: The message describes the clocks of at most this many hosts.
_MOST_HOSTS = 8


def measure(ranks: Ranks) -> tuple[str, float, float]:
    """Returns this host's name, its clock offset in ms, and the largest error of the offset in ms.

    The offset is rank 0's wall clock minus this host's. It is measured by Cristian's method: the
    fastest of several queries counts, and the error is at most half of its round trip.
    """
    best_ns, offset_ns = float("inf"), 0.0
    answer = torch.zeros(1, dtype=torch.int64)
    for rank in range(1, ranks.world_size):
        for _ in range(_PINGS):
            if ranks.rank == 0:
                dist.recv(answer, rank)
                answer[0] = time.time_ns()
                dist.send(answer, rank)
            elif ranks.rank == rank:
                begin_ns, sent_ns = time.monotonic_ns(), time.time_ns()
                dist.send(answer, 0)
                dist.recv(answer, 0)
                trip_ns = time.monotonic_ns() - begin_ns
                if trip_ns < best_ns:
                    best_ns, offset_ns = trip_ns, int(answer[0]) - (sent_ns + trip_ns / 2)
    bound_ns = 0.0 if ranks.rank == 0 else best_ns / 2
    return ranks.host, offset_ns / 1e6, bound_ns / 1e6


def judge(values: Sequence[tuple[str, float, float]]) -> Outcome:
    """Warns if a clock differs from rank 0's by more than ``_APART_MS`` plus the error bound."""
    if len({host for host, _, _ in values}) == 1:
        return Outcome(NAME, SKIP, "all ranks are on one host")
    apart = {
        rank: (host, offset, bound)
        for rank, (host, offset, bound) in enumerate(values)
        if abs(offset) - bound > _APART_MS
    }
    if not apart:
        worst = max(abs(offset) + bound for _, offset, bound in values)
        return Outcome(NAME, PASS, f"wall clocks within {worst:.3g} ms of rank 0's")
    hosts = sorted({host for host, _, _ in apart.values()})
    shown = ", ".join(
        _about_host(host, {rank: clock for rank, (on, *clock) in apart.items() if on == host})
        for host in hosts[:_MOST_HOSTS]
    )
    more = f"; also on {len(hosts) - _MOST_HOSTS} more hosts" * (len(hosts) > _MOST_HOSTS)
    return Outcome(
        NAME,
        WARN,
        f"wall clocks differ from rank 0's: {shown}{more}",
        "run chrony or another NTP client on these hosts: times in their logs cannot be compared "
        "(commprof itself compares clocks while it records)",
    )


def _about_host(host: str, apart: Mapping[int, Sequence[float]]) -> str:
    """Describes a host's clock; ``apart`` has each rank's offset and error in ms."""
    offset, bound = min(apart.values(), key=lambda values: values[1])
    return (
        f"{named_ranks(apart)} ({host}) {'is' if len(apart) == 1 else 'are'} "
        f"{abs(offset):.3g} +- {bound:.3g} ms {'behind' if offset > 0 else 'ahead'}"
    )
