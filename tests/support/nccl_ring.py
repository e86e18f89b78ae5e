from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from commprof.analysis.collectives.nccl import NcclWorld
from commprof.analysis.run import analyse_in_detail
from tests.support.nccl_runs import play


@dataclass(frozen=True)
class RankTruth:
    """Sums over all operations of one rank."""

    #: Each send to the next rank waits for the network, for the peer, and for the GPU.
    network_ns: float
    peer_ns: float
    gpu_ns: float
    waits_ns: float
    transfer_ns: float


def simulate(player: Path, out: Path, ranks: int, seed: int, slow: int) -> list[RankTruth]:
    """Plays all ranks, one by one; the link from rank ``slow`` to the next rank is slow."""
    # If simulated times were behind the real clock, the recorder's waits would end at once.
    base_ns = time.monotonic_ns() + 1000 * 10**9
    result = []
    for rank in range(ranks):
        numbers = (rank, ranks, base_ns, seed, slow)
        done = play(player, "simulate", *numbers, COMMPROF_OUT=str(out))
        link, waits, transfer = (line.split()[1:] for line in done.stdout.splitlines())
        result.append(RankTruth(*map(float, (*link, *waits, *transfer))))
    return result


def analysed(out: Path) -> NcclWorld:
    result, _ = analyse_in_detail(out)
    (found,) = result.nccl
    return found


def largest_error(truth: list[RankTruth], found: NcclWorld) -> float:
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
