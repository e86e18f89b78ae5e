"""Steps of more ranks than were recorded, drawn from those that were.

A collective starts with its last rank, so a step of P ranks has the latest of their times. Ranks
are drawn in blocks, each all recorded ranks in one recorded step: what was late together, for the
host was busy, stays together. The latest of many draws cannot be later than the latest recorded:
with far more blocks than recorded steps, waiting is underestimated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DrawnSteps:
    """Steps of all ranks together, in seconds since they met."""

    #: [steps, buckets]: the last rank's.
    ready_s: Floats
    #: [steps]: the last rank's begin of DDP's finalisation, and the mean over ranks.
    backward_end_s: Floats
    mean_backward_end_s: Floats


def draw_steps(
    ready_s: Floats,
    backward_end_s: Floats,
    ranks: int,
    steps: int,
    random: np.random.Generator,
) -> DrawnSteps:
    """Draws.

    Args:
        ready_s: [recorded steps, recorded ranks, buckets]
        backward_end_s: [recorded steps, recorded ranks]
        ranks: of the steps to draw.
        steps: to draw.
        random: what draws.
    """
    recorded_steps, recorded_ranks, buckets = ready_s.shape
    table = np.concatenate([ready_s, backward_end_s[:, :, None]], axis=2)
    latest = np.empty((steps, buckets + 1))
    mean = np.empty(steps)
    blocks = -(-ranks // recorded_ranks)
    who = np.tile(np.arange(recorded_ranks), blocks)[:ranks]
    for step in range(steps):
        if ranks < recorded_ranks:
            who = random.permutation(recorded_ranks)[:ranks]
        at = np.repeat(random.integers(0, recorded_steps, blocks), recorded_ranks)[:ranks]
        drawn = table[at, who]
        latest[step] = drawn.max(axis=0)
        mean[step] = drawn[:, -1].mean()
    return DrawnSteps(latest[:, :-1], latest[:, -1], mean)
