"""What another profiler's recording of one rank holds.

A recording is evidence only of what it holds. Whatever was not recorded is not known: it may or
may not have happened. Before a figure is computed or a conclusion drawn, these facts are checked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Recorded:
    """Facts about the recording of one rank.

    The arrays have one value per collective or message: the value for ``op_id`` k is at index k -
    1.
    """

    #: True if kernels or copies of a device were recorded.
    device: bool
    #: True if operators, or ranges of work, of the thread that trains were recorded.
    training_thread: bool
    #: True where the times of the transfer were recorded: by kernels of a device, or by a backend
    #: that transfers on the host. False where only the call on the host was recorded.
    times: Mask
    #: True where c10d's sequence number of the collective in its group was recorded. Elsewhere the
    #: recorded collectives were counted, so a missing record shifts the numbers after it.
    number: Mask
    #: True where c10d named the operation; elsewhere the operation is derived from a kernel's name,
    #: or unknown.
    operation: Mask
    #: True where size and type were recorded.
    size: Mask
    #: True where the process group was recorded, or the job has one group only.
    group: Mask
    #: True where the root was recorded.
    root: Mask
    #: Phase in which the host launched each collective, if kernels of a device were recorded;
    #: ``Phase.OTHER`` if the phase is not known. None for recordings of the host only: there, the
    #: time of a call tells its phase.
    phase: npt.NDArray[np.int64] | None = None
    #: True if the script's profiler or an optimizer's updates mark the steps. False if repeating
    #: calls, or the whole recording, count as steps: such a step may be a part of a real step, or
    #: hold several.
    steps_marked: bool = True
    #: False if nothing tells how many ranks the job has: a single recorded rank may be one of many.
    job_size: bool = True
    #: True if events of a device were recorded that are not read.
    unread_device: bool = False
