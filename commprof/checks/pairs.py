"""Measures latency and bandwidth between pairs of ranks, and names bad links."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from commprof.analysis.checks.outcome import PASS, SKIP, WARN, Outcome, far_off
from commprof.checks.ranks import Ranks
from commprof.text import counted

NAME = "pairs"
#: Up to this world size, all pairs of ranks are measured. In larger jobs, only ranks that are 1, 2,
#: 4, ... apart are measured.
_ALL_PAIRS = 16
_PINGS = 30
_BLOCKS = 4
_BLOCK_BYTES = 4_000_000
#: A latency or bandwidth is bad if it is this many times worse than the median, and meets the other
#: conditions of ``far_off``. Of fewer than five links, none is bad.
_WORSE = 3.0
#: A bad latency also exceeds the median by this many microseconds.
_WORSE_US = 50.0


@dataclass(frozen=True)
class Link:
    """Measured link between two ranks."""

    first: int
    second: int
    #: Half the shortest round trip of 8 bytes. Longer round trips are caused by busy cores.
    latency_us: float
    #: Bandwidth of the fastest exchange of 4 MB; 1 GB is 1e9 bytes.
    gb_per_s: float


def pairs_of(world_size: int) -> list[tuple[int, int]]:
    """Lists the pairs of ranks that are measured, the smaller rank first."""
    if world_size <= _ALL_PAIRS:
        return [(a, b) for a in range(world_size) for b in range(a + 1, world_size)]
    found = set()
    distance = 1
    while distance <= world_size // 2:
        for rank in range(world_size):
            other = (rank + distance) % world_size
            found.add((min(rank, other), max(rank, other)))
        distance *= 2
    return sorted(found)


def measure(ranks: Ranks) -> list[Link]:
    """Measures one pair after another; returns the links whose ``first`` is this rank."""
    links = []
    small, large = torch.zeros(1, dtype=torch.int64), torch.zeros(_BLOCK_BYTES, dtype=torch.uint8)
    for first, second in pairs_of(ranks.world_size):
        dist.barrier()
        if ranks.rank in (first, second):
            starts, peer = ranks.rank == first, second if ranks.rank == first else first
            _round_trip_ns(small, peer, starts)
            pings = [_round_trip_ns(small, peer, starts) for _ in range(_PINGS)]
            blocks = [_round_trip_ns(large, peer, starts) for _ in range(_BLOCKS)]
            if starts:
                speed = 2 * _BLOCK_BYTES / min(blocks)  # bytes per ns are GB/s
                links.append(Link(first, second, min(pings) / 2e3, speed))
    return links


def judge(values: Sequence[Sequence[Link]]) -> Outcome:
    """Warns of links that are far worse than the median, if there are at least five links."""
    links = [link for found in values for link in found]
    if not links:
        return Outcome(NAME, SKIP, "there is only one rank, so no link to measure")
    latency = statistics.median(link.latency_us for link in links)
    slow = [
        row
        for row in far_off([link.latency_us for link in links], _WORSE)
        if links[row].latency_us > latency + _WORSE_US
    ]
    thin = far_off([1 / link.gb_per_s for link in links], _WORSE)
    speed = statistics.median(link.gb_per_s for link in links)
    figure = f"{counted(len(links), 'pair')}: median {latency:.0f} us and {speed:.3g} GB/s"
    bad = [
        f"{links[row].first}-{links[row].second} {links[row].latency_us:.0f} us, "
        f"{links[row].gb_per_s:.3g} GB/s"
        for row in sorted({*slow, *thin})
    ]
    details = _matrix(links)
    if not bad:
        return Outcome(NAME, PASS, figure, details=details)
    shown = "; ".join(bad[:8]) + (f"; and {len(bad) - 8} more" if len(bad) > 8 else "")
    return Outcome(
        NAME,
        WARN,
        f"{figure}; far worse: {shown}",
        "every ring waits for its worst link: check the cable, port, route and load of the rank "
        "that these pairs have in common",
        details,
    )


def _matrix(links: Sequence[Link]) -> tuple[str, ...]:
    size = 1 + max(link.second for link in links)
    if size > _ALL_PAIRS:
        return ()
    cells = [["-"] * size for _ in range(size)]
    for link in links:
        cells[link.first][link.second] = f"{link.latency_us:.0f}"
        cells[link.second][link.first] = f"{link.gb_per_s:.3g}"
    rows = [["rank", *map(str, range(size))]]
    rows += [[str(rank), *row] for rank, row in enumerate(cells)]
    width = 1 + max(len(cell) for row in rows for cell in row[1:])
    table = [f"{row[0]:>4} " + "".join(cell.rjust(width) for cell in row[1:]) for row in rows]
    return ("latency in us above the diagonal, bandwidth in GB/s below it:", *table)


def _round_trip_ns(data: torch.Tensor, peer: int, starts: bool) -> int:
    begin_ns = time.monotonic_ns()
    if starts:
        dist.send(data, peer)
        dist.recv(data, peer)
    else:
        dist.recv(data, peer)
        dist.send(data, peer)
    return time.monotonic_ns() - begin_ns
