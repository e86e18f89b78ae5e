"""Joins several recordings of one rank into one. A profiler's schedule writes several."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from commprof.recordings.profiler_calls import external_id
from commprof.recordings.profiler_events import (
    COLUMNS,
    COLUMNS_OF_DEVICE,
    NAMED,
    ProfilerEvents,
    no_events,
)
from commprof.recordings.profiler_kinds import BEGINS_OF
from commprof.recordings.profiler_named import Event, NamedEvents
from commprof.recordings.profiler_rank import RankRecording, recorded_rank
from commprof.text import counted, named_ranks

#: Offset between the ids of successive windows. The offset keeps the ids different, because each
#: process starts with the same ids.
_APART: Final = 1 << 48
MOST_WINDOWS: Final = 1 << 12
_END_OF_TIME: Final = 1 << 62


def overlap(first: RankRecording, second: RankRecording) -> bool:
    """True if the steps of the two recordings overlap in time."""
    one, other = first.steps, second.steps
    if not len(one.begin_ns) or not len(other.begin_ns):
        return False
    return bool(one.begin_ns[0] < other.end_ns[-1] and other.begin_ns[0] < one.end_ns[-1])


def of_one_process(first: RankRecording, second: RankRecording) -> bool:
    """True if one process made the two recordings.

    Most calls in the time common to the recordings must then have equal begins and ends. If this
    time has no calls, a step must begin at the same ns in the two recordings.
    """
    begins, ends = first.calls.begin_ns.tolist(), first.calls.end_ns.tolist()
    there = {*zip(begins, ends, strict=True)}
    earliest_ns, latest_ns = min(begins, default=0), max(begins, default=-1)
    columns = second.calls.begin_ns.tolist(), second.calls.end_ns.tolist()
    both = [
        (begin_ns, end_ns)
        for begin_ns, end_ns in zip(*columns, strict=True)
        if earliest_ns <= begin_ns <= latest_ns
    ]
    if not both:
        return bool(np.isin(first.steps.begin_ns, second.steps.begin_ns).any())
    return 2 * sum(call in there for call in both) > len(both)


def one_a_rank(
    recordings: Mapping[int, Sequence[RankRecording]],
) -> tuple[dict[int, RankRecording], list[str]]:
    """Returns one recording per rank, and sentences on recordings that were left out or joined.

    If a rank has several recordings, they are called windows. Windows that begin with the same step
    on all ranks are joined, if the script marked the steps, and if step numbers increase from each
    window to the next. Otherwise the windows may come from several runs of the job, and only the
    last window of each rank is used. A window whose time lies within another window is left out.

    Args:
        recordings: recordings by rank, sorted by start time.
    """
    windows = {rank: _distinct(of_rank) for rank, of_rank in recordings.items()}
    several = sorted(rank for rank, of_rank in windows.items() if len(of_rank) > 1)
    again = sum(len(of_rank) - len(windows[rank]) for rank, of_rank in recordings.items())
    caveat = (
        [f"{counted(again, 'file')} left out: other files of the same rank hold the same steps"]
        if again
        else []
    )
    if not several:
        return {rank: of_rank[-1] for rank, of_rank in windows.items()}, caveat
    have = "has" if len(several) == 1 else "have"
    common = _common(windows)
    if common:
        windows = {
            rank: [recording for recording in of_rank if int(recording.steps.number[0]) in common]
            for rank, of_rank in windows.items()
        }
        count = len(common)
        caveat.append(
            f"{named_ranks(several)} {have} several recordings, of which {count} "
            f"{'is used' if count == 1 else 'are joined'}"
        )
        return {rank: _as_one(rank, of_rank) for rank, of_rank in windows.items()}, caveat
    caveat.append(f"{named_ranks(several)} {have} several recordings, of which the last is used")
    return {rank: of_rank[-1] for rank, of_rank in windows.items()}, caveat


def _distinct(of_rank: Sequence[RankRecording]) -> list[RankRecording]:
    if len(of_rank) == 1 or not all(len(recording.steps.begin_ns) for recording in of_rank):
        return list(of_rank[-1:])
    distinct: list[RankRecording] = []
    for recording in sorted(of_rank, key=lambda one: (one.steps.begin_ns[0], one.steps.end_ns[-1])):
        begin, end = recording.steps.begin_ns[0], recording.steps.end_ns[-1]
        if distinct and begin <= distinct[-1].steps.begin_ns[0]:
            distinct.pop()  # the new recording has the same begin, and does not end earlier
        if not distinct or end > distinct[-1].steps.end_ns[-1]:
            distinct.append(recording)
    return distinct


def _common(windows: Mapping[int, Sequence[RankRecording]]) -> set[int]:
    """Returns the steps with which a window begins on every rank; empty if none can be joined."""
    if not all(
        len(recording.steps.number) for of_rank in windows.values() for recording in of_rank
    ):
        return set()
    firsts = [
        [int(recording.steps.number[0]) for recording in of_rank] for of_rank in windows.values()
    ]
    marked = all(not recording.steps.said for of_rank in windows.values() for recording in of_rank)
    rising = all(a < b for numbers in firsts for a, b in itertools.pairwise(numbers))
    few = all(len(numbers) <= MOST_WINDOWS for numbers in firsts)
    return set.intersection(*map(set, firsts)) if marked and rising and few else set()


def _as_one(rank: int, windows: Sequence[RankRecording]) -> RankRecording:
    begins_ns = tuple(int(recording.steps.begin_ns[0]) for recording in windows)
    bounds = (0, *begins_ns[1:], _END_OF_TIME)
    whole = no_events(windows[-1].events.ranges.texts)
    whole.head = windows[-1].events.head
    for number, recording in enumerate(windows):
        _add(whole, recording.events, number * _APART, bounds[number], bounds[number + 1])
    last = windows[-1]
    joined = recorded_rank(last.name, whole)
    return replace(joined, rank=rank, by_name=last.by_name, windows_ns=begins_ns)


def _add(whole: ProfilerEvents, part: ProfilerEvents, apart: int, since: int, until: int) -> None:
    """Adds the events of ``part`` that begin in the time from ``since`` to ``until``, in ns.

    ``apart`` is added to the ids of the events.
    """
    for name in NAMED:
        named_events: NamedEvents = getattr(whole, name)
        for event in getattr(part, name):
            if since <= event.begin_ns < until:
                named_events.append(_moved(event, apart))
    for name in COLUMNS:
        target, source = getattr(whole, name), getattr(part, name)
        inside = _inside(source.begin_ns, since, until)
        for column in ("begin_ns", "end_ns", "tag", "device"):
            moved_by = apart if column == "tag" and name in COLUMNS_OF_DEVICE else 0
            _extend(getattr(target, column), getattr(source, column), inside, moved_by)
    for name in BEGINS_OF.values():
        begins = getattr(part, name)
        _extend(getattr(whole, name), begins, _inside(begins, since, until), 0)
    inside = _inside(part.launched_ns, since, until)
    _extend(whole.launched_ns, part.launched_ns, inside, 0)
    _extend(whole.launching_thread, part.launching_thread, inside, 0)
    _extend(whole.launched, part.launched, inside, apart)
    every = np.ones(len(part.graph_launched), np.bool_)
    _extend(whole.graph_launched, part.graph_launched, every, apart)
    whole.unreadable += part.unreadable
    whole.unreadable_name = whole.unreadable_name or part.unreadable_name
    whole.other_device += part.other_device
    whole.other_device_name = whole.other_device_name or part.other_device_name
    whole.unusable += part.unusable
    whole.passed_over += part.passed_over
    whole.passed_over_in_head += part.passed_over_in_head
    whole.problem = whole.problem or part.problem


def _moved(event: Event, apart: int) -> Event:
    correlation, arguments = event.correlation, event.arguments
    if correlation >= 0:
        correlation += apart
    if number := external_id(event):
        arguments = {**arguments, "External id": number + apart}
    return event._replace(correlation=correlation, arguments=arguments)


def _inside(begin_ns: array[int], since: int, until: int) -> npt.NDArray[np.bool_]:
    begins = np.frombuffer(begin_ns, np.int64) if begin_ns else np.zeros(0, np.int64)
    return (begins >= since) & (begins < until)


def _extend(
    target: array[int], source: array[int], chosen: npt.NDArray[np.bool_], moved_by: int
) -> None:
    if source:
        values = np.frombuffer(source, np.int64)[chosen]
        target.frombytes(np.where(values >= 0, values + moved_by, values).tobytes())
