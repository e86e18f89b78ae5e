"""Reads the data of all ranks that is needed to make the timeline of one rank.

Traces are read one at a time. About 370 bytes are kept for each collective on each rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.arrivals import Arrivals, BucketArrivals, bucket_arrivals
from commprof.analysis.align.clocks import (
    SAME_CLOCK,
    ClockMap,
    clock_error_us,
    on_common_clock,
    rank_clocks,
)
from commprof.analysis.align.device_timeline import on_device_timeline
from commprof.analysis.align.matching import last_awaited, match
from commprof.errors import CommprofError, TraceError
from commprof.text import clauses
from commprof.trace import columns
from commprof.trace.columns import Collectives, Ints
from commprof.trace.reader import Trace, read_trace
from commprof.trace.run.run_directory import about_file
from commprof.trace.schema import Kind

_BUCKETS = (Kind.BUCKET, Kind.BUCKET_END, Kind.FINALIZE_BEGIN, Kind.FINALIZE_END)
#: Kinds of records that are kept. Issues bound the error of the clocks. ``END`` is needed because
#: a bucket without a hook ends with its all-reduce.
_KEPT = (Kind.CLOCK, Kind.ISSUE, Kind.END, *_BUCKETS)
#: Latest time that is shown; a damaged record may have a later time.
_LAST_NS = 2**63 - 1


@dataclass(frozen=True)
class Window:
    """Interval of time to show, on the common clock."""

    begin_ns: int
    end_ns: int

    def holds(self, begin_ns: Ints, end_ns: Ints | None = None) -> npt.NDArray[np.bool_]:
        """Returns True for each interval that overlaps the window.

        Without ``end_ns``, returns True for each time in ``begin_ns`` that lies in the window.
        """
        goes_on = begin_ns >= self.begin_ns
        if end_ns is not None:
            goes_on |= end_ns > self.begin_ns
        inside: npt.NDArray[np.bool_] = goes_on & (begin_ns < self.end_ns)
        return inside


@dataclass(frozen=True)
class Flows:
    """Arrows from the rank that arrived last to the waiting ranks; rows are collectives."""

    #: Index of the arrow that ends in this row; -1 if there is none.
    received: Ints
    #: Time at which the waiting for the last rank ended and the transfer began.
    transfer_begin_ns: Ints
    #: Arrows ``sent[first[row] : first[row + 1]]`` begin in this row.
    first: Ints
    sent: Ints


@dataclass(frozen=True)
class Overview:
    """Data of all ranks that is needed to make the timeline of one rank.

    Tuples with one item per rank are in the order of ``ranks``.
    """

    sources: tuple[Path | Trace, ...]
    ranks: tuple[int, ...]
    clocks: tuple[ClockMap, ...]
    arrivals: tuple[Arrivals, ...]
    flows: tuple[Flows, ...]
    window: Window
    #: Metadata of the first rank's trace.
    metadata: Mapping[str, Any]
    #: Method that converts the ranks' times to one clock. "shared": all ranks have the same clock.
    #: "compared": their clocks were compared. "wall": the hosts' wall clocks are used.
    aligned_by: str
    #: Bound on the error of the conversion; 0 for "shared", NaN for "wall".
    clock_error_us: float
    #: Per rank: Unix time minus monotonic time when capture began.
    unix_offsets_ns: tuple[int, ...]
    pids: tuple[int, ...]
    #: Sentences on traces that could not be read.
    problems: tuple[str, ...]


def read_source(source: Path | Trace) -> Trace:
    """Returns a rank's trace on the device's timeline; reads the trace if given a path."""
    return on_device_timeline(source if isinstance(source, Trace) else read_trace(source))


def overview(sources: Mapping[int, Path | Trace], steps: tuple[int, int] | None) -> Overview:
    """Reads every rank's trace once and collects the data that the ranks' timelines need.

    Args:
        sources: traces by rank; at least one.
        steps: first and last step to show; None to show all records.

    Raises:
        CommprofError: no trace can be read, no trace holds records, or no rank recorded any of
            the steps.
    """
    traces, tables, windows, metadata = [], [], [], []
    readable: dict[int, Path | Trace] = {}
    left_out = []
    for rank, source in sources.items():
        try:
            trace = read_source(source)
        except (OSError, TraceError) as error:
            path = source.path if isinstance(source, Trace) else source
            _, alone, of_several = about_file(rank, str(error), path)
            left_out.append((rank, f"is left out: {alone}", f"are left out: {of_several}"))
            continue
        readable[rank] = source
        tables.append(columns.collectives(trace))
        windows.append(_window(trace, steps))
        metadata.append(trace.metadata)
        records = trace.records.compress(columns.one_of(trace.records, *_KEPT))
        traces.append(replace(trace, records=records, stacks={}))
    problems = clauses(left_out)
    if not readable:
        raise CommprofError("; ".join(problems))
    clocks = rank_clocks(traces)
    error_us = clock_error_us(clocks, traces)
    maps = clocks if clocks is not None else [_by_wall_clock(m, metadata[0]) for m in metadata]
    tables = [_moved(table, clock) for table, clock in zip(tables, maps, strict=True)]
    window = _union(windows, maps, steps)
    arrivals, flows = _matched(traces, tables, window, clocks)
    return Overview(
        sources=tuple(readable.values()),
        ranks=tuple(readable),
        clocks=tuple(maps),
        arrivals=tuple(arrivals),
        flows=tuple(flows),
        window=window,
        metadata=metadata[0],
        aligned_by=_aligned_by(clocks),
        clock_error_us=error_us,
        problems=tuple(problems),
        unix_offsets_ns=tuple(map(_unix_offset_ns, metadata)),
        pids=tuple(of_rank["pid"] for of_rank in metadata),
    )


def _aligned_by(clocks: list[ClockMap] | None) -> str:
    if clocks is None:
        return "wall"
    return "shared" if all(clock.is_same_clock for clock in clocks) else "compared"


def _by_wall_clock(metadata: Mapping[str, Any], first: Mapping[str, Any]) -> ClockMap:
    offset = _unix_offset_ns(metadata) - _unix_offset_ns(first)
    time_ns = np.array([metadata["clock"]["monotonic_ns"]], dtype=np.int64)
    return ClockMap(time_ns, np.array([offset], dtype=np.int64), np.zeros(1), 0.0, 0.0, 0.0)


def _unix_offset_ns(metadata: Mapping[str, Any]) -> int:
    clock = metadata["clock"]
    return int(clock["realtime_ns"] - clock["monotonic_ns"])


def _window(trace: Trace, steps: tuple[int, int] | None) -> tuple[int, int] | None:
    """Returns start and end of the time to show, in ns on the rank's clock; None if nothing."""
    if steps is None:
        if len(trace.records) == 0:
            return None
        times = trace.records["timestamp_ns"]
        return min(int(times.min()), _LAST_NS - 1), min(int(times.max()) + 1, _LAST_NS)
    table = columns.steps(trace)
    chosen = (table.index >= steps[0]) & (table.index <= steps[1])
    if not chosen.any():
        return None
    return int(table.begin_ns[chosen].min()), int(table.end_ns[chosen].max())


def _union(
    windows: list[tuple[int, int] | None],
    clocks: list[ClockMap],
    steps: tuple[int, int] | None,
) -> Window:
    found = [
        clock.to_common(np.array(window, dtype=np.int64)).tolist()
        for window, clock in zip(windows, clocks, strict=True)
        if window is not None
    ]
    if not found and steps is not None:
        raise CommprofError(
            f"no rank recorded a step with a number from {steps[0]} to {steps[1]}; omit --steps to "
            "see all records"
        )
    if not found:
        raise CommprofError("there is nothing to show: the traces hold no records")
    return Window(min(begin for begin, _ in found), max(end for _, end in found))


def _moved(table: Collectives, clock: ClockMap) -> Collectives:
    if clock is SAME_CLOCK or clock.is_same_clock:
        return table
    end_ns = np.where(table.end_ns > 0, clock.to_common(table.end_ns), 0)
    return replace(table, issue_ns=clock.to_common(table.issue_ns), end_ns=end_ns)


def _matched(
    traces: list[Trace],
    tables: list[Collectives],
    window: Window,
    clocks: list[ClockMap] | None,
) -> tuple[list[Arrivals], list[Flows]]:
    """Returns the arrivals and the arrows of each rank.

    If ``clocks`` is None, every last rank is unknown (-1), and there are no arrows.
    """
    matching = match(traces, tables)
    issue_ns = np.concatenate([table.issue_ns for table in tables])
    end_ns = np.concatenate([table.end_ns for table in tables])
    awaited = last_awaited(matching, traces, tables, issue_ns)
    last_ns, late = matching.at(issue_ns, awaited)
    buckets = [BucketArrivals()] * len(traces)
    if clocks is not None:
        buckets = bucket_arrivals(on_common_clock(traces, clocks), len(matching.complete))
    else:
        last_ns, late = np.zeros_like(last_ns), np.full_like(late, -1)
    number = np.where(late >= 0, matching.member, -1)
    is_late = np.zeros(len(awaited), dtype=bool)
    is_late[awaited[awaited >= 0]] = True
    held_up = awaited != np.arange(len(awaited))
    shown = (late >= 0) & window.holds(issue_ns)
    # An arrow ends at the last arrival, so the waiting rank's slice must end later.
    receives = shown & held_up & (end_ns - np.maximum(last_ns, issue_ns) >= 2)
    sends = shown & is_late & (end_ns > issue_ns)
    received, first, sent = _arrows(awaited, receives, sends)
    transfer_begin_ns = np.maximum(last_ns, issue_ns)
    parts = [matching.split(x) for x in (last_ns, late, number, received, transfer_begin_ns)]
    arrivals = [Arrivals(*columns) for columns in zip(*parts[:3], buckets, strict=True)]
    flows, arrow = [], 0
    for length, ends, times in zip(matching.lengths, parts[3], parts[4], strict=True):
        part = first[arrow : arrow + length + 1]
        flows.append(Flows(ends, times, part - part[0], sent[part[0] : part[-1]]))
        arrow += length
    return arrivals, flows


def _arrows(
    source: Ints, receives: npt.NDArray[np.bool_], sends: npt.NDArray[np.bool_]
) -> tuple[Ints, Ints, Ints]:
    """Returns the columns ``received``, ``first`` and ``sent`` of ``Flows``.

    An arrow leads from row ``source[row]`` to row ``row`` if both ``sends[source[row]]`` and
    ``receives[row]`` are True. Arrows are numbered by the rows in which they end.
    """
    ends = np.flatnonzero(receives & sends[source])
    received = np.full(len(source), -1, dtype=np.int64)
    received[ends] = np.arange(len(ends))
    by_source = ends[np.argsort(source[ends], kind="stable")]
    row = np.arange(len(source))
    low, high = (np.searchsorted(source[by_source], row, side=side) for side in ("left", "right"))
    first = np.concatenate(([0], np.cumsum(high - low))).astype(np.int64)
    return received, first, received[by_source]
