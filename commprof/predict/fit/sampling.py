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

#: Drawn at a time, so that memory stays small.
_MOST_VALUES = 4_000_000


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
    blocks = -(-ranks // recorded_ranks)
    at_once = max(1, _MOST_VALUES // (blocks * recorded_ranks * (buckets + 1)))
    latest, mean = [], []
    for begin in range(0, steps, at_once):
        count = min(at_once, steps - begin)
        # [steps, blocks, recorded ranks, buckets + 1], then ranks in a row
        drawn = table[random.integers(0, recorded_steps, (count, blocks))]
        drawn = drawn.reshape(count, blocks * recorded_ranks, buckets + 1)[:, :ranks]
        latest.append(drawn.max(axis=1))
        mean.append(drawn[:, :, -1].mean(axis=1))
    last = np.concatenate(latest)
    return DrawnSteps(last[:, :-1], last[:, -1], np.concatenate(mean))
