"""Times of a rank's device in each step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.trace import columns
from commprof.trace.columns import Steps
from commprof.trace.device_activity import DeviceActivity
from commprof.trace.reader import Trace
from commprof.trace.stretches import Stretches, Windows

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DeviceTimes:
    """Times of a device in each complete step, in ns; see :mod:`commprof.trace.device_activity`."""

    #: Like ``kernels_ns``, NaN if kernels of communication were not recorded.
    communication_ns: Floats
    compute_ns: Floats
    kernels_ns: Floats
    exposed_ns: Floats
    copies_ns: Floats


@columns.once_per_trace
def device_times(trace: Trace) -> DeviceTimes:
    """Returns the times of a rank's device."""
    assert trace.device_activity is not None
    return times_in_steps(trace.device_activity, columns.steps(trace))


def times_in_steps(activity: DeviceActivity, steps: Steps) -> DeviceTimes:
    """Returns the times of a device, or of the devices of a block of ranks, in these steps."""
    windows = Windows(steps.begin_ns, steps.end_ns)

    def within_ns(ran: Stretches | None) -> Floats:
        if ran is None:
            return np.full(len(steps), np.nan)
        return windows.covered(ran.begin_ns, ran.end_ns)

    return DeviceTimes(
        communication_ns=within_ns(activity.communication),
        compute_ns=within_ns(activity.compute),
        kernels_ns=within_ns(None if activity.communication is None else activity.kernels),
        exposed_ns=within_ns(activity.exposed),
        copies_ns=within_ns(activity.copies),
    )
