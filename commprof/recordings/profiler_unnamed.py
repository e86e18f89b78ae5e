"""Finds the communication kernels of backends whose kernel names are not known.

Kernels of NCCL, RCCL, oneCCL and some others are recognised by name. The kernels of a backend
outside of torch are recognised by the range in which the host launched the kernels. An example of
such a range is ``hccl:all_reduce``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from commprof.recordings.profiler_calls import launches
from commprof.recordings.profiler_events import Intervals, ProfilerEvents
from commprof.recordings.profiler_named import Event, named_events
from commprof.recordings.profiler_words import is_backend_of_torch
from commprof.trace.lookup import row_containing
from commprof.trace.stretches import stretches


def with_unnamed_communication(events: ProfilerEvents) -> ProfilerEvents:
    """Moves the kernels of a backend outside of torch from ``kernels`` to ``communication``.

    If the trace already has kernels of communication, nothing changes.
    """
    rows, of_ranges = events.backend_range_rows, events.ranges
    of_torch = of_ranges.texts.mask(is_backend_of_torch)[of_ranges.table.name[rows]]
    ranges = of_ranges.pick(rows[~of_torch])
    kernels = events.kernels
    if not ranges or events.communication or not len(kernels):
        return events
    correlation = np.frombuffer(kernels.tag, np.int64)
    at_ns, thread = launches(events, correlation)
    chosen = np.zeros(len(at_ns), np.bool_)
    for each in {event.thread for event in ranges}:
        mine = [event for event in ranges if event.thread == each]
        inside = stretches(
            np.array([event.begin_ns for event in mine], np.int64),
            np.array([event.end_ns for event in mine], np.int64),
        )
        chosen |= (thread == each) & (row_containing(inside.begin_ns, inside.end_ns, at_ns) >= 0)
    rest, communication = Intervals(), list[Event]()
    columns = zip(kernels.begin_ns, kernels.end_ns, kernels.tag, kernels.device, strict=True)
    for (begin, end, tag, device), sends in zip(columns, chosen.tolist(), strict=True):
        if sends:
            communication.append(Event("", begin, end, -1, device, tag, {}))
        else:
            rest.add(begin, end, tag, device)
    if not communication:
        return events
    named = named_events(events.ranges.texts, communication)
    return replace(events, kernels=rest, communication=named)
