"""One frame of ``commprof top`` for a job whose processes write logs of NCCL Inspector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from textwrap import wrap
from typing import Final

from commprof.analysis.inspector.live import InspectorState, LiveProcess
from commprof.report.inspector import named_processes
from commprof.report.tabulated import tabulated, three_digits
from commprof.text import counted, printable

_MOST_PROCESSES: Final = 16
_MOST_KINDS: Final = 6


def inspector_frame(state: InspectorState, folder: str, width: int) -> list[str]:
    """Returns the lines of a live view, none longer than ``width``."""
    at = datetime.fromtimestamp(state.time_s).strftime("%H:%M:%S")
    lines = [
        f"NCCL Inspector: {_processes_of(len(state.processes))}, "
        f"{counted(state.communicators, 'communicator')}, {state.calls:,} calls, at {at}, written "
        f"{state.since_written_s:.0f} s ago: {folder}",
        "",
        *(part for line in _verdict(state) for part in wrap(printable(line), width)),
        "",
        *_processes(state),
        "",
        *_kinds(state),
        *(f"* {problem}" for problem in state.problems),
    ]
    return [printable(line)[:width].rstrip() for line in lines]


def inspector_waiting_frame(folder: str, width: int, problems: Sequence[str]) -> list[str]:
    """Returns the lines to show before the first operation is in a log."""
    lines = [f"no operation is in the logs in {folder} yet; waiting", *(f"* {p}" for p in problems)]
    return [printable(line)[:width] for line in lines]


def _verdict(state: InspectorState) -> list[str]:
    if not state.calls:
        return ["No call is complete on all ranks yet."]
    if state.slower is not None:
        return [
            f"{named_processes(state.slower)} make the others wait: {state.slower.share:.0%} of "
            "the recent waiting began with them."
        ]
    if not state.late:
        return ["No process stands out as the one that the others wait for."]
    others = "other recorded ranks" if state.is_lower_bound else "others"
    return [
        f"{late.process.label} makes the {others} wait: {late.share:.0%} of the recent "
        "waiting began with it. "
        f"It is late in {late.late_parts} of the {late.parts} parts of this time."
        for late in state.late
    ]


def _processes(state: InspectorState) -> list[str]:
    most = sorted(state.processes, key=lambda one: -one.recent_caused_s)
    late = state.waited_for
    rows = [_process(one, one.process in late) for one in most[:_MOST_PROCESSES]]
    headers = ("process", "rank", "is", "caused", "waited", "of its time", "caused in all")
    more = len(most) - len(rows)
    return [
        *tabulated(rows, headers, (0, 2)).splitlines(),
        *([f"{_processes_of(more)} more."] if more else []),
        "Recent times in s; caused: all waiting that began with the process; waited: the process's "
        "own waiting.",
    ]


def _processes_of(number: int) -> str:
    return f"{number} process{'es' * (number != 1)}"


def _process(one: LiveProcess, is_late: bool) -> tuple[str, ...]:
    busy_s = one.recent_time_s
    return (
        one.process.label,
        "-" if one.rank is None else str(one.rank),
        "silent" if not one.writes else "late" if is_late else "",
        three_digits(one.recent_caused_s),
        three_digits(one.recent_waited_s),
        f"{one.recent_waited_s / busy_s:.0%}" if busy_s > 0 else "-",
        three_digits(one.caused_s),
    )


def _kinds(state: InspectorState) -> list[str]:
    rows = [row for row in state.kinds if not math.isnan(row.transfer_us)][:_MOST_KINDS]
    if not rows:
        return []
    cells = [
        (
            row.op,
            str(row.ranks),
            str(row.size_bytes),
            three_digits(row.wait_us),
            three_digits(row.transfer_us),
            three_digits(row.busbw_gb_per_s),
        )
        for row in rows
    ]
    headers = ("operation", "ranks", "size B", "wait us", "transfer us", "busbw GB/s")
    return [*tabulated(cells, headers, (0,)).splitlines(), ""]
