"""Computes the time that processes spend outside of all operations, without comparing clocks.

Processes that exchange data leave their operations together, so between two such moments the same
time passes for all processes. So the process that works longer than the others has the least time
in operations (waiting and transfer, over all communicators). Unlike waiting, this time need not be
traced across communicators.

The rule fails if operations overlap in one process, or if processes do not depend on each other. So
this evidence counts only together with the evidence of the waiting.
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

_HALVINGS: Final = 60


def operation_time(job: InspectedJob) -> Floats:
    """Returns each process's time in µs in all operations, with estimates for lost records.

    NaN for a process that has lost all records of a kind of operation.
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
        sets: number of each process's set. The median is that of the same set. Processes that
            exchange no data are in different sets.
    """
    own: Floats = np.zeros(len(operation_us))
    for number in np.unique(sets):
        of_set = sets == number
        own[of_set] = np.median(operation_us[of_set]) - operation_us[of_set]
    return own


def least_standing_out_us(own_us: Floats, standing: Sequence[int]) -> float:
    """Returns the least time outside of operations with which one more process would stand out.

    A process that is late by less may be missed. NaN if a time is not known, or if there are too
    few processes.

    Args:
        own_us: result of :func:`own_time`.
        standing: the processes that stand out.
    """
    # The longest time is left out, because it may belong to a late process.
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
    """True if a process's time outside of operations is too short for a process that was late.

    The time is too short if it is less than half of the delay.

    Args:
        own_us: result of :func:`own_time`.
        process: index of the process.
        delay_us: by how much the process was late, over the whole run, as its waiting suggests.
    """
    return bool(own_us[process] < delay_us / 2)
