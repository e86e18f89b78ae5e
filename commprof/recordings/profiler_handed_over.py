"""Reads collectives of a device from their calls on the host.

This is needed if the recording has no kernels of communication. A call returns when the collective
is in the device's queue, so the times of the transfer are not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from commprof.recordings.profiler_calls import Call, described, sizes_of
from commprof.recordings.profiler_events import ProfilerEvents
from commprof.recordings.profiler_named import Event
from commprof.recordings.profiler_words import backend_of, is_collective_range, operation

#: Backends whose ranges on the host end when a collective is in the queue of a device.
OF_DEVICES: Final = ("nccl", "rccl", "xccl")


def hands_over(events: ProfilerEvents) -> bool:
    """True if a backend that transfers on a device was called on the host."""
    return any(backend_of(event.name) in OF_DEVICES for event in events.ranges)


def handed_over(events: ProfilerEvents, world_size: int) -> list[Call]:
    """Returns the collectives and messages that the host called, in order, without times."""
    calls = []
    for nest in _nests(events):
        telling = [event for event in nest if operation(_told(event)) != "other"]
        # c10d records metadata once for each collective, but one operator may issue several
        # collectives.
        each = [event for event in telling if "Collective name" in event.arguments]
        each = (
            each or [event for event in telling if is_collective_range(event.name)] or telling[:1]
        )
        for event in each:
            around = [e for e in nest if e.begin_ns <= event.begin_ns and event.end_ns <= e.end_ns]
            inside = [e for e in nest if event.begin_ns <= e.begin_ns and e.end_ns <= event.end_ns]
            arguments: dict[str, Any] = {}
            for other in (*around, *inside):
                arguments = {**sizes_of(other.arguments), **other.arguments, **arguments}
            arguments |= event.arguments
            call = described(_told(event), arguments, world_size)
            call = replace(call, launch_ns=event.begin_ns, launch_thread=event.thread)
            calls.append(replace(call, begin_ns=event.begin_ns, end_ns=event.end_ns, timed=False))
    return sorted(calls, key=lambda call: (call.begin_ns, call.end_ns))


def _told(event: Event) -> str:
    name = event.arguments.get("Collective name")
    return name if isinstance(name, str) and operation(name) != "other" else event.name


def _nests(events: ProfilerEvents) -> Iterator[Sequence[Event]]:
    """Yields lists of c10d's events: an outermost range or operator, then the events inside it."""
    of_c10d = [*events.backend_ranges, *events.issued]
    nest: list[Event] = []
    for event in sorted(of_c10d, key=lambda e: (e.thread, e.begin_ns, -e.end_ns)):
        if nest and (event.thread != nest[0].thread or event.begin_ns >= nest[0].end_ns):
            yield nest
            nest = []
        nest.append(event)
    if nest:
        yield nest
