"""When a rank's process did not run at all, and what a rank's lateness may come from.

A pause within waiting for communication is waiting: what is left of the pauses is time in which
the training thread would have worked.
"""

from __future__ import annotations

from typing import Final

from commprof.analysis.step.exposure import Exposures
from commprof.trace import columns
from commprof.trace.reader import Trace
from commprof.trace.schema import PHASES
from commprof.trace.stretches import Stretches, outside, stretches

#: The process was stopped, or frozen, or its machine stood still.
HOST_PAUSE: Final = "host pause"
#: What lateness may come from: a phase of the training thread's work, or a pause.
ORIGINS: Final = (*PHASES, HOST_PAUSE)


def pauses(trace: Trace, exposed: Exposures) -> Stretches:
    """Pauses of the rank's process outside of the training thread's waiting."""
    found = columns.pauses(trace)
    if len(found) == 0:
        return Stretches(found.begin_ns, found.end_ns)
    return outside(
        stretches(found.begin_ns, found.end_ns), stretches(exposed.begin_ns, exposed.end_ns)
    )
