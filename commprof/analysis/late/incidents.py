"""Incidents of a run: hangs, mismatched collectives, and lasting changes of speed.

The watchdog writes its files into the run directory: ``hang_N.json`` holds a hang, and
``watchdog_HOST.jsonl`` holds mismatches and changes of speed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np

from commprof.analysis.collectives.mismatches import Mismatch, mismatches_by_group
from commprof.analysis.evidence import Evidence, Figure, evidence_of
from commprof.analysis.late.anomalies import (
    BANDWIDTH,
    COMPUTE,
    STEP,
    Anomaly,
    bandwidth_by_step,
    find_anomalies,
)
from commprof.analysis.late.last_wait import LastWait, last_wait
from commprof.analysis.step.measured import MeasuredWorld, in_turns
from commprof.files import checked, read_bytes
from commprof.trace.columns import Ints
from commprof.trace.reader import Trace
from commprof.trace.run.run_directory import WorldRun
from commprof.units import FIRST_DATE_NS

HANG_SCHEMA_VERSION = 1
#: By kind of anomaly: an anomaly counts only if the recordings support this figure.
_RESTS_ON = {STEP: Figure.STEP, COMPUTE: Figure.EXPOSED, BANDWIDTH: Figure.CALLS}
HANG_FILES = "hang_*.json"
EVENT_FILES = "watchdog_*.jsonl"
#: Larger files are not the watchdog's.
_LARGEST_BYTES = 16 << 20
#: Largest number of hangs that are returned. The same limit applies to events.
_MOST = 50


@dataclass(frozen=True)
class StackFile:
    """File with the stacks of one rank, or the reason why there is none."""

    rank: int
    #: File name in the run directory; empty if there is none.
    file: str
    problem: str


@dataclass(frozen=True)
class HangReport:
    """One hang, as reported by the watchdog of one host."""

    number: int
    host: str
    #: Time at which the hang was found, ISO 8601, UTC.
    found: str
    sentence: str
    #: Ranks that the others waited for.
    accused: tuple[int, ...]
    #: Seconds from ``found`` until the hang was over; None if the watchdog did not see the end.
    ended_after_s: float | None
    stacks: tuple[StackFile, ...]
    #: Name of the hang file.
    file: str


@dataclass(frozen=True)
class WatchEvent:
    """A mismatch or an anomaly that the watchdog reported while the job ran."""

    #: "mismatch" or "anomaly".
    kind: str
    #: ISO 8601, UTC.
    time: str
    sentence: str


def read_hangs(directory: Path) -> tuple[HangReport, ...]:
    """Reads the hang files in a directory of traces; returns the hangs sorted by number."""
    found = (_hang(path) for path in sorted(directory.glob(HANG_FILES)))
    hangs = sorted((one for one in found if one is not None), key=lambda one: one.number)
    return tuple(hangs[:_MOST])


def read_events(directory: Path) -> tuple[WatchEvent, ...]:
    """Reads the events that the watchdogs of all hosts reported, sorted by time."""
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
    """The fields of a ``hang_N.json`` that ``HangReport`` needs."""

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
    """Hangs, mismatched collectives, and lasting changes of speed at one world size."""

    world_size: int
    hangs: tuple[HangReport, ...]
    #: The first mismatch of each process group, from the records.
    mismatches: tuple[Mismatch, ...]
    #: Number of mismatched collectives in all groups.
    mismatch_count: int
    #: Pairs of a time (ISO 8601, UTC; empty if unknown) and the anomaly at this time.
    anomalies: tuple[tuple[str, Anomaly], ...]
    #: Mismatches and anomalies that the watchdog reported. Read only if no steps were measured, or
    #: if always-on mode did not keep all records.
    events: tuple[WatchEvent, ...]
    #: The hang with which the recordings end, or None. Always None if there are ``hangs`` or
    #: ``mismatches``.
    last_wait: LastWait | None = None

    def __bool__(self) -> bool:
        """True if there are any incidents."""
        is_any = bool(self.hangs or self.mismatches or self.anomalies or self.events)
        return is_any or self.last_wait is not None


class WatchedCalls:
    """Collects data on incidents from calls; adds the calls of a long run window by window."""

    def __init__(self) -> None:
        self._first: dict[str, Mismatch] = {}
        self._differing: dict[tuple[str, int], list[Ints]] = {}
        self.gbit_per_s: dict[int, float] = {}

    def add(self, seen: MeasuredWorld) -> None:
        """Adds the calls of the next window of steps; neighbouring windows may share calls."""
        first, differing = mismatches_by_group(seen.traces, seen.tables)
        for mismatch in first:
            self._first.setdefault(mismatch.group, mismatch)
        for group, seq in differing.items():
            self._differing.setdefault(group, []).append(seq)
        rates, steps = bandwidth_by_step(seen), seen.parts.step.tolist()
        self.gbit_per_s.update({step: rates[step] for step in steps if step in rates})

    @property
    def mismatches(self) -> tuple[Mismatch, ...]:
        """The first mismatch of each group."""
        return tuple(self._first.values())

    @property
    def mismatch_count(self) -> int:
        """Number of all mismatches."""
        return sum(len(np.unique(np.concatenate(seq))) for seq in self._differing.values())


def find_incidents(
    run: WorldRun,
    seen: MeasuredWorld | None,
    calls: WatchedCalls | None = None,
    evidence: Evidence | None = None,
) -> Incidents:
    """Collects incidents from the watchdog's files and from the records.

    Args:
        run: the ranks' recordings.
        seen: the ranks' measured steps; None if no steps were measured.
        calls: the calls of a long run; None for a shorter run.
        evidence: shows which figures the recordings support; None to compute it here.

    A trial changes the speed of steps on purpose. So a run with a trial is not searched for
    changes of speed.
    """
    hangs = read_hangs(run.directory)
    summarised = any(trace.summary is not None for trace in run.traces.values())
    events = read_events(run.directory) if seen is None or summarised else ()
    ended_in = None if hangs else last_wait([*run.traces.values()], run.world_size)
    if seen is None:
        return Incidents(run.world_size, hangs, (), 0, (), events, ended_in)
    evidence = evidence or evidence_of(seen)
    if calls is None:
        calls = WatchedCalls()
        calls.add(seen)
    whole = seen.all_steps
    anomalies = () if in_turns(run) else find_anomalies(whole, calls.gbit_per_s)
    if not evidence.supports(Figure.CHANGE):
        anomalies = ()
    anomalies = tuple(one for one in anomalies if evidence.supports(_RESTS_ON[one.what]))
    timed = tuple((_wall_clock(seen.recorded[0], one.time_ns), one) for one in anomalies)
    mismatches = calls.mismatches
    return Incidents(
        run.world_size,
        hangs,
        mismatches,
        calls.mismatch_count,
        timed,
        events,
        None if mismatches else ended_in,
    )


def _wall_clock(trace: Trace, time_ns: int) -> str:
    """Returns the date and time in ISO 8601, UTC; empty if not known."""
    clock: dict[str, Any] = trace.metadata["clock"]
    if clock["realtime_ns"] < FIRST_DATE_NS:
        return ""
    try:
        since = timedelta(microseconds=(time_ns - clock["monotonic_ns"]) / 1000)
        begun = datetime.fromtimestamp(clock["realtime_ns"] / 1e9, timezone.utc)
        return (begun + since).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return ""
