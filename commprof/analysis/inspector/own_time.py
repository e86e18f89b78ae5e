"""Time that processes spend outside of all operations, found without comparing any clocks.

Processes that exchange data leave their operations together, so between two such moments the same
time passes for all. The time that a process spends in operations is not spent outside of them.
The process that works longer than the others is therefore the one with the least time in all of its
operations together (waiting and transfer, over all communicators). This holds for the sum over any
part of the run. So unlike waiting, this time need not be traced across communicators, and processes
that are late in turns are not confused.

The rule does not hold where operations overlap in one process, or where processes do not depend on
each other: then the times differ for other reasons too, and no process stands out from their
spread. So this evidence counts only together with the evidence of the waiting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from commprof.stats.outliers import CLEARLY, FEWEST_OTHERS, SIGNIFICANCE, chance_beyond

if TYPE_CHECKING:
    from commprof.analysis.inspector.communicators import InspectedJob

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: A limit is searched by bisection; the interval is halved this many times.
_HALVINGS: Final = 60


def operation_time(job: InspectedJob) -> Floats:
    """Returns each process's time in µs in all operations, with an estimate for lost records.

    NaN for a process that has lost all records of some operation.
    """
    total = np.zeros(len(job.processes))
    for communicator in job.communicators:
        for operations in communicator.operations:
            np.add.at(total, communicator.process, operations.waits.whole_time_us)
    return total


def own_time(operation_us: Floats, sets: Ints) -> Floats:
    """Returns by how many µs each process's time outside of operations exceeds the median.

    Args:
        operation_us: result of :func:`operation_time`.
        sets: set of each process; the median is that of the process's set. Processes that exchange
        no data, such as those of different starts of the job, are in different sets.
    """
    own: Floats = np.zeros(len(operation_us))
    for number in np.unique(sets):
        of_set = sets == number
        own[of_set] = np.median(operation_us[of_set]) - operation_us[of_set]
    return own


def least_standing_out_us(own_us: Floats, standing: Sequence[int]) -> float:
    """Returns the least time outside of operations with which one more process would stand out.

    If logs lost records, times of processes have an error, so that a process that is late by less
    may be missed. The longest time of the others is left out, because it may belong to such a
    process. NaN if a time is not known, or if there are too few processes.

    Args:
        own_us: result of :func:`own_time`.
        standing: the processes that stand out.
    """
    others = np.sort(np.delete(own_us, list(standing)))[:-1]
    if len(others) < FEWEST_OTHERS or not np.isfinite(others).all():
        return math.nan
    low, high = 0.0, max(1.0, 1e3 * float(np.abs(others).max()))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        is_chance = chance_beyond(middle, others) * len(own_us) > SIGNIFICANCE
        low, high = (middle, high) if is_chance else (low, middle)
    return max(high, CLEARLY * float(others.max()))


def is_too_short(own_us: Floats, process: int, delay_us: float) -> bool:
    """True if a process's time outside of operations does not show that the process was late.

    The time is compared with two times: that of a process that was not late, and that of a process
    that was late by ``delay_us``. The nearer one is more likely the true one, whatever the spread
    of such times is.

    Args:
        own_us: result of :func:`own_time`.
        process: index of the process.
        delay_us: by how much the process was late, over the whole run, if waiting began with it.
    """
    return bool(own_us[process] < delay_us / 2)
