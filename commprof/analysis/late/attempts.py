"""Lists the attempts of a job that was restarted, and the time that restarts cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from commprof.errors import TraceError
from commprof.trace import columns
from commprof.trace.reader import Trace, read_trace
from commprof.trace.run.endings import Endings, attempt_paths, exit_text, rank_problems
from commprof.trace.run.run_directory import WorldRun
from commprof.units import ns_to_s


@dataclass(frozen=True)
class Attempt:
    """One start of all ranks by a launcher."""

    world_size: int
    #: Index of the attempt: the number of restarts before it.
    number: int
    #: Number of ranks that left a trace.
    ranks: int
    #: Number of steps that all of these ranks completed.
    steps: int
    #: Time from the first record to the last record of any rank; NaN if there are no records.
    duration_s: float
    #: Time from the last complete step of this attempt to the first step of the next attempt with
    #: steps. If the first attempt with records has no steps, the time starts at its begin. NaN for
    #: other attempts without steps, and if no later attempt has steps.
    lost_s: float
    #: Reason for the end, in words; empty for an attempt that finished.
    ending: str


@dataclass(frozen=True)
class _Seen:
    """Times of one attempt in ns, by the wall clock."""

    ranks: int
    steps: int
    begin_ns: float
    step_begin_ns: float
    step_end_ns: float
    end_ns: float
    ending: str


def attempts_of(run: WorldRun) -> tuple[Attempt, ...]:
    """Lists all attempts of one world size, in order; empty if there was no restart."""
    paths = attempt_paths(run.directory)
    numbers = sorted({*paths, *(a.attempt for a in run.endings.attempts)} if run.endings else paths)
    if len(numbers) < 2:
        return ()
    seen = [_seen(number, paths.get(number, {}), run.endings) for number in numbers]
    return tuple(
        Attempt(
            world_size=run.world_size,
            number=number,
            ranks=each.ranks,
            steps=each.steps,
            duration_s=ns_to_s(each.end_ns - each.begin_ns),
            lost_s=lost_s,
            ending=each.ending,
        )
        for number, each, lost_s in zip(numbers, seen, _lost_s(seen), strict=True)
    )


def attempts_remarks(attempts: tuple[Attempt, ...]) -> list[str]:
    """Returns a remark on the time that restarts cost; empty without restarts."""
    if not attempts:
        return []
    known = [each.lost_s for each in attempts if not math.isnan(each.lost_s)]
    lost = f"{sum(known):.1f} s" if known else "an unknown time"
    restarts = attempts[-1].number  # an attempt that ended early may have left no trace
    return [
        f"At {attempts[0].world_size} ranks the job was restarted "
        f"{'once' if restarts == 1 else f'{restarts} times'}: for {lost} no step was "
        "trained. Steps since the script's last checkpoint had to be repeated: the table of "
        "attempts counts these steps in each attempt that trained them. All other figures are of "
        "the last attempt."
    ]


def _lost_s(attempts: list[_Seen]) -> list[float]:
    lost = [math.nan] * len(attempts)
    before: int | None = None
    for place, attempt in enumerate(attempts):
        if attempt.steps:
            if before is not None:
                lost[before] = ns_to_s(attempt.step_begin_ns - attempts[before].step_end_ns)
            before = place
        elif before is None and not math.isnan(attempt.begin_ns):
            before = place
    return lost


def _seen(number: int, paths: Mapping[int, Path], endings: Endings | None) -> _Seen:
    traces = _readable(paths)
    tables = [columns.steps(trace) for trace in traces]
    recorded = [
        (trace, table) for trace, table in zip(traces, tables, strict=True) if len(trace.records)
    ]
    begins = [int(t.records["timestamp_ns"][0]) + _offset(t) for t, _ in recorded]
    ends = [int(t.records["timestamp_ns"][-1]) + _offset(t) for t, _ in recorded]
    step_begins = [int(s.begin_ns[0]) + _offset(t) for t, s in recorded if len(s)]
    step_ends = [int(s.end_ns[-1]) + _offset(t) for t, s in recorded if len(s)]
    return _Seen(
        ranks=len(traces),
        steps=min((len(table) for table in tables), default=0),
        begin_ns=min(begins, default=math.nan),
        step_begin_ns=min(step_begins, default=math.nan),
        step_end_ns=max(step_ends, default=min(begins, default=math.nan)),
        end_ns=max(ends, default=math.nan),
        ending=_ending(number, traces, endings),
    )


def _readable(paths: Mapping[int, Path]) -> list[Trace]:
    traces = []
    for path in paths.values():
        try:
            traces.append(read_trace(path))
        except (TraceError, OSError):
            continue  # an unreadable trace counts as missing
    return traces


def _offset(trace: Trace) -> int:
    """Returns wall clock minus CLOCK_MONOTONIC in ns, to compare times of different machines."""
    clock = trace.metadata["clock"]
    return int(clock["realtime_ns"]) - int(clock["monotonic_ns"])


def _last_ns(trace: Trace) -> float:
    if not len(trace.records):
        return math.inf
    return int(trace.records["timestamp_ns"][-1]) + _offset(trace)


def _ending(number: int, traces: list[Trace], endings: Endings | None) -> str:
    launched = [a for a in endings.attempts if a.attempt == number] if endings else []
    for rank, code in (launched[-1].exit_codes if launched else {}).items():
        return f"rank {rank}: {exit_text(code, launched[-1].oom_kills)}"
    # The rank with the fault stopped first. After that, the launcher stopped the other ranks.
    cut_off = sorted((trace for trace in traces if not trace.complete), key=_last_ns)
    for trace in [*cut_off, *(t for t in traces if t.metadata.get("ending", {}).get("error"))]:
        return rank_problems([trace])[0]
    return ""
