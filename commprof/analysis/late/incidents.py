"""What went wrong in a run besides being slow: hangs, ranks out of step, changes of level.

Hangs are read from what the watchdog left in the run directory: ``hang_N.json``, and
``watchdog_HOST.jsonl``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from commprof.analysis.align.measured import MeasuredWorld
from commprof.analysis.collectives.mismatches import Mismatch, find_mismatches
from commprof.analysis.step.anomalies import Anomaly, find_anomalies
from commprof.files import checked, read_bytes
from commprof.trace.reader import Trace
from commprof.trace.run.run_directory import WorldRun

HANG_SCHEMA_VERSION = 1
HANG_FILES = "hang_*.json"
EVENT_FILES = "watchdog_*.jsonl"
#: A file that is larger is none of ours.
_LARGEST_BYTES = 16 << 20
#: Of each kind; the files have all.
_MOST = 50


@dataclass(frozen=True)
class StackFile:
    """Stacks of one rank, or why there are none."""

    rank: int
    #: In the run directory; empty without any.
    file: str
    problem: str


@dataclass(frozen=True)
class HangReport:
    """One hang as the watchdog of some host saw it."""

    number: int
    host: str
    #: When it was found, ISO 8601, UTC.
    found: str
    #: What happened: rank, collective, bucket, phase.
    sentence: str
    #: Ranks that the others waited for.
    accused: tuple[int, ...]
    #: Seconds until no rank was beyond the threshold; None if that was not to be seen.
    ended_after_s: float | None
    stacks: tuple[StackFile, ...]
    #: The file that holds each rank's state.
    file: str


@dataclass(frozen=True)
class WatchEvent:
    """A mismatch or an anomaly that the watchdog saw while the job ran."""

    #: "mismatch" or "anomaly".
    kind: str
    #: ISO 8601, UTC.
    time: str
    sentence: str


def read_hangs(directory: Path) -> tuple[HangReport, ...]:
    """Reads the hang files in a directory of traces, by number; foreign files are passed over."""
    found = (_hang(path) for path in sorted(directory.glob(HANG_FILES)))
    hangs = sorted((one for one in found if one is not None), key=lambda one: one.number)
    return tuple(hangs[:_MOST])


def read_events(directory: Path) -> tuple[WatchEvent, ...]:
    """What the watchdogs of all hosts noted, in order of time."""
    events = []
    for path in sorted(directory.glob(EVENT_FILES)):
        for line in _text(path).splitlines():
            event = _event(_json(line))
            if event is not None:
                events.append(event)
    return tuple(sorted(events, key=lambda event: event.time)[:_MOST])


@dataclass(frozen=True)
class _Accused:
    rank: int


@dataclass(frozen=True)
class _HangFile:
    """What is used of a ``hang_N.json``; the fields of ``HangReport``."""

    schema_version: int
    number: int
    host: str
    found: str
    sentence: str
    accused: tuple[_Accused, ...]
    stacks: tuple[StackFile, ...]
    ended_after_s: float | None


def _hang(path: Path) -> HangReport | None:
    try:
        value: _HangFile = checked(_json(_text(path)), _HangFile)
    except ValueError:
        return None
    if value.schema_version != HANG_SCHEMA_VERSION:
        return None
    accused = tuple(one.rank for one in value.accused)
    known = (value.number, value.host, value.found, value.sentence)
    return HangReport(*known, accused, value.ended_after_s, value.stacks, path.name)


def _event(value: Any) -> WatchEvent | None:
    try:
        event: WatchEvent = checked(value, WatchEvent)
    except ValueError:
        return None
    return event


def _text(path: Path) -> str:
    try:
        return read_bytes(path, _LARGEST_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True)
class Incidents:
    """Incidents of one world size."""

    world_size: int
    #: As the watchdog saw them.
    hangs: tuple[HangReport, ...]
    #: From the records: the first of each process group.
    mismatches: tuple[Mismatch, ...]
    #: Collectives that were not the same on all ranks, in all groups.
    mismatch_count: int
    #: From the records, each with its time, ISO 8601, UTC; empty if that cannot be known.
    anomalies: tuple[tuple[str, Anomaly], ...]
    #: What the watchdog saw of both while the job ran, where the records are gone.
    events: tuple[WatchEvent, ...]

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.hangs or self.mismatches or self.anomalies or self.events)


def find_incidents(run: WorldRun, seen: MeasuredWorld | None) -> Incidents:
    """Collects incidents from the watchdog's files, and from the records where there are some.

    Of a trial no changes are looked for: its candidates change the step on purpose.
    """
    hangs = read_hangs(run.directory)
    summarised = any(trace.summary is not None for trace in run.traces.values())
    events = read_events(run.directory) if seen is None or summarised else ()
    if seen is None:
        return Incidents(run.world_size, hangs, (), 0, (), events)
    mismatches, count = find_mismatches(seen.traces, seen.tables)
    on_trial = any("trial" in trace.metadata for trace in seen.traces)
    anomalies = () if on_trial else find_anomalies(seen)
    timed = tuple((_wall_clock(seen.recorded[0], one.time_ns), one) for one in anomalies)
    return Incidents(run.world_size, hangs, mismatches, count, timed, events)


def _wall_clock(trace: Trace, time_ns: int) -> str:
    clock: dict[str, Any] = trace.metadata["clock"]
    try:
        since = timedelta(microseconds=(time_ns - clock["monotonic_ns"]) / 1000)
        begun = datetime.fromtimestamp(clock["realtime_ns"] / 1e9, timezone.utc)
        return (begun + since).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return ""
