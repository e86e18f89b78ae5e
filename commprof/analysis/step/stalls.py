"""Finds stalled steps, which are rare and very long; the verdict leaves them out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from commprof.analysis.step.breakdown import Floats

#: A stalled step took more than this many times the median step.
_STALLED = 10.0
#: Largest fraction of stalled steps. If more steps are so long, such steps are normal for the job.
#: A single long step always counts as stalled.
_RARE = 0.05


def stalled(slowest: Floats) -> npt.NDArray[np.bool_]:
    """Returns for each step whether it stalled.

    A stalled step took more than ten times the median. If several steps, and more than 5 % of all
    steps, took so long, none of them stalled.

    Args:
        slowest: the slowest rank's time of each step, in any unit.
    """
    if len(slowest) < 3:
        return np.zeros(len(slowest), dtype=np.bool_)
    long: npt.NDArray[np.bool_] = slowest > _STALLED * np.median(slowest)
    rare = long.sum() <= max(1.0, _RARE * len(slowest))
    return long if rare else np.zeros(len(slowest), dtype=np.bool_)
