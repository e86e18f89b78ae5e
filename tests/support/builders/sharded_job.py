"""A job of FSDP2 that is worked out by hand: two blocks, on ranks with equal steps.

A step of 96 ms begins with 2 ms of data. The first block is gathered (5 ms); while it computes
(10 ms), the second block is gathered. Backward gathers the second block (5 ms), and during its
compute (20 ms) the first block. A block's gradients are reduce-scattered (10 ms) before the
backward of the next block. The optimizer takes 4 ms.
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
#: Bytes per second of the link in the profile: 1 MB takes 10 ms.
RATE = MB / 0.010
STEP_MS = 96
FLOAT = 1
#: The step in which rank 1 records a short wait for a collective that is already complete; in other
#: steps it records no such wait.
_SEEN = 4


def fsdp_ranks(ranks: int = 2, steps: int = 8) -> list[Rank]:
    """Returns the ranks' recordings."""
    found = [Rank(rank, ranks, dtypes=["", "Float"]) for rank in range(ranks)]
    for rank in found:
        for step in range(steps):
            _step(rank, step, ranks)
    return found


def fsdp_steps(ranks: int = 2) -> ShardedSteps:
    """Returns the steps in the form for predictions, a rank on each host of 4 cores."""
    found = read_sharded(world_run(fsdp_ranks(ranks)))
    return dataclasses.replace(
        found, link=OTHER_HOST, placement=Placement(1.0, 4.0, 1, float("nan"))
    )


def replay(steps: ShardedSteps | None = None) -> ShardedReplay:
    """Returns a model of these steps, by default of ``fsdp_steps()``."""
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
