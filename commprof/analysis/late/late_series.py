"""Finds the one series of late steps of a rank, in a run too short for a significance test.

A rank may be slowed for some time: by another process on its host, by a disk, by heat. Then it is
late in one series of steps. The steps of a series have one common cause, so they count as a single
observation, and no test can tell one observation from chance. But the series shows when the rank
was slow, and that the rank was not slow before or after.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from commprof.analysis.late.stragglers import OF_STEP

Floats = npt.NDArray[np.float64]

#: Smallest number of late steps in a series.
_LEAST = 3
#: At least this fraction of the steps of a series are late.
_DENSE = 0.75
#: Of all waiting for the rank, at least this fraction falls into the steps of the series.
_OF_WAITING = 0.8
#: In a late step, the waiting for the rank is at least this fraction of that in its worst step.
_OF_LONGEST = 0.25
#: Largest part of all steps that a series may take.
_LONGEST = 0.75


def late_series(waited_for_ns: Floats, step_ns: float) -> slice | None:
    """Returns the rows of the one series of steps in which the most awaited rank was late.

    Args:
        waited_for_ns: ``[step, rank]``: waiting that the rank caused, summed over all others.
        step_ns: median step time. A step is late if the other ranks wait for 2 % of this time or
          more on average, and for at least a quarter as long as in the step of the longest wait.

    None if there is no such series, or if the rank was late in other steps too.
    """
    steps, ranks = waited_for_ns.shape
    if ranks < 2 or not steps:
        return None
    caused_ns = waited_for_ns[:, int(np.argmax(waited_for_ns.sum(axis=0)))]
    least_ns = max(OF_STEP * step_ns * (ranks - 1), _OF_LONGEST * float(caused_ns.max()))
    late = np.flatnonzero(caused_ns >= least_ns)
    if len(late) < _LEAST:
        return None
    series = slice(int(late[0]), int(late[-1]) + 1)
    length = series.stop - series.start
    if length > _LONGEST * steps or len(late) < _DENSE * length:
        return None
    return series if caused_ns[series].sum() >= _OF_WAITING * caused_ns.sum() else None
