"""A job of all-reduces in a ring whose every time is known (``test_nccl_network simulate``)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from commprof.analysis.collectives.nccl import NcclWorld
from commprof.analysis.run import analyse_in_detail
from tests.support.nccl_runs import play


@dataclass(frozen=True)
class RankTruth:
    """What is known of one rank, in ns over all its operations."""

    #: Parts of its sends to the next rank: time for the network, for the peer and for the GPU.
    network_ns: float
    peer_ns: float
    gpu_ns: float
    #: Waits of its kernels for the last rank.
    waits_ns: float
    transfer_ns: float


def simulate(player: Path, out: Path, ranks: int, seed: int, slow: int) -> list[RankTruth]:
    """Plays all ranks, one after the other; the link from rank ``slow`` to the next is slow."""
    # The simulated times are ahead of the real clock, else the recorder's waits would end at once.
    base_ns = time.monotonic_ns() + 1000 * 10**9
    result = []
    for rank in range(ranks):
        numbers = (rank, ranks, base_ns, seed, slow)
        done = play(player, "simulate", *numbers, COMMPROF_OUT=str(out))
        link, waits, transfer = (line.split()[1:] for line in done.stdout.splitlines())
        result.append(RankTruth(*map(float, (*link, *waits, *transfer))))
    return result


def analysed(out: Path) -> NcclWorld:
    """Returns what the report says of the job's operations and links."""
    result, _ = analyse_in_detail(out)
    (found,) = result.nccl
    return found


def largest_error(truth: list[RankTruth], found: NcclWorld) -> float:
    """Returns the largest relative error of the parts of all links, and of waits and transfer."""
    (row,) = found.rows
    per_rank = row.operations // len(truth)
    errors = [
        _error(row.times.transfer_ms, sum(t.transfer_ns for t in truth) / row.operations),
        _error(row.times.wait_by_kernels_ms, sum(t.waits_ns for t in truth) / row.operations),
        _error(row.times.wait_by_clocks_ms, sum(t.waits_ns for t in truth) / row.operations),
    ]
    assert len(found.links) == len(truth)
    for link in found.links:
        known = truth[int(link.from_rank)]
        errors += [
            _error(link.split.network_ms, known.network_ns / per_rank),
            _error(link.split.peer_ms, known.peer_ns / per_rank),
            _error(link.split.gpu_ms, known.gpu_ns / per_rank),
        ]
    return max(errors)


def _error(found_ms: float, known_ns: float) -> float:
    return abs(found_ms * 1e6 / known_ns - 1)
