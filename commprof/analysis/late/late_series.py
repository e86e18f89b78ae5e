"""Finds one series of steps in which a rank was late, in a run too short for a test.

A rank may be slowed for some time by another process on its host, by a disk or by heat. The rank is
then late in one series of steps. These steps have one common cause, so they count as a single
observation. No test can distinguish a single observation from chance. But the series shows when the
rank was slow.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from commprof.analysis.late.stragglers import OF_STEP

Floats = npt.NDArray[np.float64]

#: Smallest number of late steps in a series.
_LEAST = 3
#: Smallest fraction of late steps in a series.
_DENSE = 0.75
#: Smallest fraction of the waiting for the rank that falls into the series.
_OF_WAITING = 0.8
#: Smallest waiting in a late step, as a fraction of the longest waiting in any step.
_OF_LONGEST = 0.25
#: A series takes at most this fraction of all steps.
_LONGEST = 0.75


def late_series(waited_for_ns: Floats, step_ns: float) -> slice | None:
    """Returns the rows from the first to the last late step of the rank that caused most waiting.

    Args:
        waited_for_ns: ``[step, rank]``: waiting that the rank caused, summed over all others.
        step_ns: median step time.

    None if the late steps do not form one series.
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
