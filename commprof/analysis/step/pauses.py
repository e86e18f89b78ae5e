"""When a rank's process did not run at all, and what a rank's lateness may come from.

A pause within waiting for communication is waiting: what is left of the pauses is time in which
the training thread would have worked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from commprof.analysis.step.exposure import Exposures
from commprof.trace import columns
from commprof.trace.columns import Ints
from commprof.trace.reader import Trace
from commprof.trace.schema import PHASES

#: The process was stopped, or frozen, or its machine stood still.
HOST_PAUSE: Final = "host pause"
#: What lateness may come from: a phase of the training thread's work, or a pause.
ORIGINS: Final = (*PHASES, HOST_PAUSE)

_EVER: Final = 2**62


@dataclass(frozen=True)
class Stretches:
    """Times, in order and apart from each other."""

    begin_ns: Ints
    end_ns: Ints

    def __len__(self) -> int:
        """Number of stretches."""
        return len(self.begin_ns)


def stretches(begin_ns: Ints, end_ns: Ints) -> Stretches:
    """The time within any of these, each moment once."""
    order = np.argsort(begin_ns, kind="stable")
    begin_ns, end_ns = begin_ns[order], end_ns[order]
    before = np.maximum.accumulate(np.concatenate(([-_EVER], end_ns)))[:-1]
    begin_ns = np.maximum(begin_ns, before)
    chosen = begin_ns < end_ns
    return Stretches(begin_ns[chosen], end_ns[chosen])


def within(some: Stretches, others: Stretches) -> Stretches:
    """The time that lies in both."""
    first = np.searchsorted(others.end_ns, some.begin_ns, side="right")
    last = np.searchsorted(others.begin_ns, some.end_ns, side="left")
    count = np.maximum(0, last - first)
    row = np.repeat(np.arange(len(some)), count)
    other = np.arange(len(row)) - np.repeat(np.cumsum(count) - count - first, count)
    return Stretches(
        np.maximum(some.begin_ns[row], others.begin_ns[other]),
        np.minimum(some.end_ns[row], others.end_ns[other]),
    )


def outside(some: Stretches, others: Stretches) -> Stretches:
    """The time of the first that does not lie in the others."""
    gaps = Stretches(
        np.concatenate(([-_EVER], others.end_ns)), np.concatenate((others.begin_ns, [_EVER]))
    )
    return within(some, gaps)


def pauses(trace: Trace, exposed: Exposures) -> Stretches:
    """Pauses of the rank's process outside of the training thread's waiting."""
    found = columns.pauses(trace)
    if len(found) == 0:
        return Stretches(found.begin_ns, found.end_ns)
    return outside(
        stretches(found.begin_ns, found.end_ns), stretches(exposed.begin_ns, exposed.end_ns)
    )
