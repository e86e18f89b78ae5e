"""Describes what another profiler's recording of one rank holds.

An event that was not recorded may still have happened. So reports check these facts before they
compute a figure or draw a conclusion.
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
    #: True if operators or ranges of the training thread were recorded.
    training_thread: bool
    #: True where the times of the transfer were recorded. False where only the call on the host was
    #: recorded.
    times: Mask
    #: True where c10d's sequence number was recorded. Elsewhere, the number comes from counting the
    #: recorded collectives. Numbers after a missing record are then wrong.
    number: Mask
    #: True where c10d named the operation. Elsewhere, the operation is unknown, or was derived from
    #: the name of a kernel.
    operation: Mask
    size: Mask
    #: True where the process group was recorded, or where the job has only one group.
    group: Mask
    root: Mask
    #: Phase in which the host launched each collective; ``Phase.OTHER`` if the phase is unknown.
    #: None if no kernels of a device were recorded.
    phase: npt.NDArray[np.int64] | None = None
    #: True if the script's profiler or the optimizer's updates mark the steps. False if the steps
    #: were derived from repeated calls, or if the whole recording counts as one step.
    steps_marked: bool = True
    #: False if the number of ranks in the job is unknown.
    job_size: bool = True
    #: True if the recording holds device events that commprof does not read.
    unread_device: bool = False
