"""What went wrong in a run besides being slow: hangs, ranks out of step, changes of level."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from commprof.analysis.align.measured import MeasuredWorld
from commprof.analysis.collectives.mismatches import Mismatch, find_mismatches
from commprof.analysis.late.hangs import HangReport, WatchEvent, read_events, read_hangs
from commprof.analysis.step.anomalies import Anomaly, find_anomalies
from commprof.trace.reader import Trace
from commprof.trace.run.run_directory import WorldRun


@dataclass(frozen=True)
class Incidents:
    """Of one world size."""

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
    """From the files of the watchdog, and from the records where there are some.

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
