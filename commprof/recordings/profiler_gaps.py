"""Finds kernels that the host launched but the profiler did not record.

A profiler drops kernels if its buffers are full, and it may record a device only for a part of the
time. If the kernels of a step are missing, the device must not count as idle in this step.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from commprof.recordings.profiler_events import COLUMNS_OF_DEVICE, ProfilerEvents
from commprof.recordings.profiler_named import joined
from commprof.recordings.profiler_steps import FoundSteps
from commprof.text import counted
from commprof.trace.lookup import distinct, row_containing
from commprof.trace.stretches import Ints, Stretches, covered, stretches

#: A step counts if at least this fraction of its launches have a recorded kernel.
_MOST = 0.5

#: Times of launches, and True for each launch with a recorded kernel or copy.
Launches = tuple[Ints, npt.NDArray[np.bool_]]


def recorded_steps(
    events: ProfilerEvents, launches: Launches, steps: FoundSteps, busy: Stretches
) -> tuple[FoundSteps, list[str]]:
    """Leaves out steps whose kernels were not recorded; also returns a caveat.

    Such a step has launches or calls of c10d, but few or no kernels. If all steps with launches are
    like this, the launches are ignored, because the recording may not show which launch started
    which kernel.

    Args:
        events: the trace's events.
        launches: launches of the trace.
        steps: the steps as they were found.
        busy: times at which the device ran something.
    """
    begin, end = steps.begin_ns, steps.end_ns
    launched_ns, has_kernel = launches
    row = row_containing(begin, end, launched_ns)
    launched, kept = (
        np.bincount(row[(row >= 0) & chosen], minlength=len(begin))
        for chosen in (np.ones(len(row), np.bool_), has_kernel)
    )
    calls = row_containing(begin, end, np.sort(events.issued.table.begin_ns))
    called = np.bincount(calls[calls >= 0], minlength=len(begin))
    is_idle = covered(busy.begin_ns, busy.end_ns, None, begin, end) == 0
    lost = (launched > 0) & (kept < _MOST * launched)
    if not ((launched > 0) & ~lost).any():
        lost[:] = False
    lost |= is_idle & (launched == 0) & (called > 0)
    if not lost.any() or lost.all():
        return steps, []
    caveat = (
        f"the kernels of {int(lost.sum())} of {counted(len(begin), 'step')} were not recorded; "
        "all figures leave out such steps"
    )
    kept_steps = replace(
        steps, number=steps.number[~lost], begin_ns=begin[~lost], end_ns=end[~lost]
    )
    return kept_steps, [caveat]


def lost_kernels(events: ProfilerEvents, launches: Launches, steps: FoundSteps) -> list[str]:
    """Returns a caveat if kernels that c10d launched in the steps were not recorded."""
    if events.graph_launched:  # kernels launched into a graph run later, or never
        return []
    at, has_kernel = launches
    if has_kernel.all() or not has_kernel.any():
        return []
    thread = np.frombuffer(events.launching_thread, np.int64) if len(at) else at
    within = row_containing(steps.begin_ns, steps.end_ns, at) >= 0
    count = 0
    ranges = events.ranges.table.rows(events.backend_range_rows)
    of_c10d = joined((ranges, events.issued.table))
    for of_thread in distinct(of_c10d.thread).tolist():
        mine = of_c10d.thread == of_thread
        inside = stretches(of_c10d.begin_ns[mine], of_c10d.end_ns[mine])
        rows = np.flatnonzero((thread == of_thread) & ~has_kernel & within)
        count += int((row_containing(inside.begin_ns, inside.end_ns, at[rows]) >= 0).sum())
    if not count:
        return []
    if count == 1:
        return ["1 kernel that c10d launched was not recorded and is missing from all figures"]
    return [
        f"{count} kernels that c10d launched were not recorded and are missing from all figures"
    ]


def launches_of(events: ProfilerEvents) -> Launches:
    """Returns the times of all launches, and True for each with a recorded kernel or copy."""
    if not events.launched:
        return np.zeros(0, np.int64), np.zeros(0, np.bool_)
    ran = [events.communication.table.correlation]
    for name in COLUMNS_OF_DEVICE:
        tags = getattr(events, name).tag
        ran += [np.frombuffer(tags, np.int64)] if len(tags) else []
    ids = np.frombuffer(events.launched, np.int64)
    at = np.frombuffer(events.launched_ns, np.int64)
    return at, np.isin(ids, np.concatenate(ran)) & (ids >= 0)
