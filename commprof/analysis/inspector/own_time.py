"""Time that processes spend outside of all operations, without any clock.

Processes that exchange data leave their operations together, so between two such moments the same
time passes for all: what a process spends in operations it does not spend outside of them. The
process that works longer than the others is therefore the one with the least time in all of its
operations together, waiting and transfer, of whichever communicator. This holds as a sum over any
part of the run, so unlike waiting it needs no tracing across communicators, and several processes
that are late in turns do not mix.

It does not hold where operations overlap in one process, or where processes do not depend on each
other: then the times differ for other reasons too, and nobody stands out from their spread. So
this evidence counts only beside that of the waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from commprof.stats.outliers import chance_beyond

if TYPE_CHECKING:
    from commprof.analysis.inspector.communicators import InspectedJob

Floats = npt.NDArray[np.float64]

#: Probability that any process of the job stands out by chance, at most.
_SIGNIFICANCE: Final = 0.001
#: Who stands out exceeds the median at least so many times as much as any who does not.
_CLEARLY: Final = 2.0
#: Fewest processes whose spread is measured.
_FEWEST: Final = 3


def operation_time(job: InspectedJob) -> Floats:
    """Returns each process's time in µs in all operations, as if no record were lost.

    NaN for a process without a record that tells how long an operation takes it.
    """
    total = np.zeros(len(job.processes))
    for communicator in job.communicators:
        for operations in communicator.operations:
            np.add.at(total, communicator.process, operations.waits.whole_time_us)
    return total


def own_time(operation_us: Floats) -> Floats:
    """Returns by how much each process is longer outside of operations than the median, in µs."""
    own: Floats = np.median(operation_us) - operation_us
    return own


def standing_out(own_us: Floats, most: int) -> list[int]:
    """Returns the processes whose time outside of operations is beyond that of all others.

    Args:
        own_us: result of :func:`own_time`.
        most: most processes that may stand out.

    Returns the most processes of which the least differs from the others by more than chance and
    clearly; empty if there are none, or if a time is not known.
    """
    if not np.isfinite(own_us).all():
        return []
    order = np.argsort(-own_us, kind="stable")
    falling = own_us[order]
    for size in range(min(most, len(own_us) - _FEWEST), 0, -1):
        least, others = float(falling[size - 1]), falling[size:]
        if least < _CLEARLY * max(float(others[0]), 0.0) or least <= 0:
            continue
        if chance_beyond(least, others) * len(own_us) <= _SIGNIFICANCE:
            return order[:size].tolist()
    return []


def is_too_short(own_us: Floats, standing: Sequence[int], process: int, delay_us: float) -> bool:
    """True if a process's time outside of operations cannot have delayed others so much.

    Args:
        own_us: result of :func:`own_time`.
        standing: result of :func:`standing_out`; the spread of all others is that of chance.
        process: one of the others.
        delay_us: by how much it came late, over the whole run, if waiting began with it.
    """
    others = np.delete(own_us, list(standing))
    lacking_us = delay_us - float(own_us[process])
    return chance_beyond(lacking_us, others - others.mean()) <= _SIGNIFICANCE
