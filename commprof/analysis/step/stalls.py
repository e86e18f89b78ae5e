"""Finds stalled steps: steps so rare and so long that the verdict leaves them out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from commprof.analysis.step.breakdown import Floats

#: A step stalled only if it took longer than this many median steps.
_STALLED = 10.0
#: Steps stalled only if at most this fraction of all steps, or a single step, took so long. If more
#: steps do, such steps are normal for the job.
_RARE = 0.05


def stalled(slowest: Floats) -> npt.NDArray[np.bool_]:
    """Returns for each step whether it stalled.

    A step stalled if it took more than ten times the median, and if only one step, or at most 5 %
    of the steps, took so long.

    Args:
        slowest: the slowest rank's time of each step, in any unit.
    """
    if len(slowest) < 3:
        return np.zeros(len(slowest), dtype=np.bool_)
    long: npt.NDArray[np.bool_] = slowest > _STALLED * np.median(slowest)
    rare = long.sum() <= max(1.0, _RARE * len(slowest))
    return long if rare else np.zeros(len(slowest), dtype=np.bool_)
