"""A job of FSDP2 with two blocks and steps of 96 ms, worked out by hand.

A block computes for 10 ms in forward and 20 ms in backward. A gather takes 5 ms, a reduce-scatter
10 ms.
"""

from __future__ import annotations

import dataclasses

from commprof.forecast.costs.cost_model import OTHER_HOST
from commprof.forecast.scenario.schedule import Placement
from commprof.forecast.sharded.replay import ShardedReplay
from commprof.forecast.sharded.steps import ShardedSteps, read_sharded
from commprof.trace.schema import OPS, Phase
from tests.support.builders.schedules import profile
from tests.support.builders.traces import MS, Rank, world_run

MB = 1_000_000
RATE = MB / 0.010
STEP_MS = 96
FLOAT = 1
#: Only in this step, rank 1 records a short wait for a collective that is already complete.
_SEEN = 4


def fsdp_ranks(ranks: int = 2, steps: int = 8) -> list[Rank]:
    found = [Rank(rank, ranks, dtypes=["", "Float"]) for rank in range(ranks)]
    for rank in found:
        for step in range(steps):
            _step(rank, step, ranks)
    return found


def fsdp_steps(ranks: int = 2) -> ShardedSteps:
    found = read_sharded(world_run(fsdp_ranks(ranks)))
    return dataclasses.replace(
        found, link=OTHER_HOST, placement=Placement(1.0, 4.0, 1, float("nan"))
    )


def replay(steps: ShardedSteps | None = None) -> ShardedReplay:
    return ShardedReplay(steps or fsdp_steps(), profile(bytes_per_s=RATE, latency_s=0.0))


def _step(rank: Rank, step: int, ranks: int) -> None:
    begin = step * STEP_MS * MS
    seq = iter(range(6 * step, 6 * step + 6))

    def call(op: str, at_ms: float, length_ms: float, task: int = -1) -> tuple[int, int, int]:
        issue, end = begin + int(at_ms * MS), begin + int((at_ms + length_ms) * MS)
        whole, part = MB, MB // ranks
        sizes = (part, whole) if op.startswith("all_gather") else (whole, part)
        done = rank.collective(
            next(seq), issue, end, op=op, graph_task=task, bytes_in=sizes[0], bytes_out=sizes[1],
            dtype=FLOAT,
        )  # fmt: skip
        return done, issue, end

    def waited(at: tuple[int, int, int]) -> None:
        rank.wait(*at)

    def found_complete(at: tuple[int, int, int], at_ms: float) -> None:
        if rank.rank == 1 and step == _SEEN:
            rank.wait(at[0], begin + int(at_ms * MS), begin + int(at_ms * MS) + 1)

    gather, scatter = "all_gather_into_tensor", "reduce_scatter_tensor"
    assert {gather, scatter} <= set(OPS)
    rank.phase(Phase.DATA, begin, begin + 2 * MS)
    waited(call(gather, 2, 5))
    found_complete(call(gather, 7, 5), 17)
    rank.phase(Phase.FORWARD, begin + 2 * MS, begin + 27 * MS)
    waited(call(gather, 27, 5, step))
    first = call(gather, 32, 5, step)
    waited(call(scatter, 52, 10, step))
    found_complete(first, 62)
    waited(call(scatter, 82, 10, step))
    rank.phase(Phase.BACKWARD, begin + 27 * MS, begin + 92 * MS)
    rank.phase(Phase.OPTIMIZER, begin + 92 * MS, begin + STEP_MS * MS)
    rank.step(begin, begin + STEP_MS * MS)
