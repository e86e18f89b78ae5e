"""Timeline of one rank: tracks of slices, ready to be drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.arrivals import Arrivals
from commprof.analysis.align.clocks import on_common_clock
from commprof.analysis.step.exposure import HOST_PAUSE, exposures_of, training_thread
from commprof.analysis.step.waiting import split
from commprof.analysis.timeline.overview import Flows, Overview, Window, read_source
from commprof.errors import CommprofError
from commprof.text import plain_digits
from commprof.trace import columns, schema
from commprof.trace.columns import Collectives, Ints, Spans, compressions, ints, of_kind
from commprof.trace.reader import Trace
from commprof.trace.schema import Kind
from commprof.units import ns_to_us

#: One value per slice. NaN, None, or -1 in a column of integers stands for a missing value.
Column: TypeAlias = "npt.NDArray[np.generic] | list[str] | list[str | None]"


@dataclass(frozen=True)
class Track:
    """Slices of one kind; slices on one lane do not overlap."""

    #: Name to be shown, such as "steps" or "collectives in flight".
    name: str
    begin_ns: Ints
    end_ns: Ints
    lane: Ints
    label: list[str]
    facts: Mapping[str, Column] = field(default_factory=dict)
    #: Arrows between ranks; None except in the track of collectives.
    flows: Flows | None = None

    def __len__(self) -> int:
        return len(self.begin_ns)


@dataclass(frozen=True)
class RankActivity:
    """Tracks of one rank, on the common clock."""

    rank: int
    host: str
    tracks: tuple[Track, ...]


def rank_timeline(view: Overview, index: int) -> RankActivity:
    """Reads the trace of ``view.sources[index]`` again and makes its tracks.

    Raises:
        CommprofError: the trace cannot be read any more, or has grown meanwhile.
    """
    try:
        recorded = read_source(view.sources[index])
    except OSError as error:
        raise CommprofError(
            f"the trace of rank {view.ranks[index]} cannot be read any more: {error.strerror}; "
            "try again when the files of the trace no longer change"
        ) from None
    (trace,) = on_common_clock([recorded], [view.clocks[index]])
    table, arrivals = columns.collectives(trace), view.arrivals[index]
    if len(table) != len(arrivals.late_rank):
        raise CommprofError(
            f"{recorded.path} has grown since it was first read, because the job is still running; "
            "try again when the job has ended"
        )
    tracks = [
        _steps(trace),
        *_phases(trace),
        _exposed(trace, table, arrivals),
        _pauses(trace),
        *_waits(trace, table),
        _collectives(trace, table, arrivals, view.flows[index]),
        _buckets(trace),
        *_compressor(trace),
    ]
    shown = [_within(track, view.window) for track in tracks]
    host = str(trace.metadata["machine"]["hostname"])
    return RankActivity(view.ranks[index], host, tuple(track for track in shown if len(track)))


def _track(
    name: str,
    begin_ns: Ints,
    end_ns: Ints,
    label: list[str],
    facts: Mapping[str, Column] | None = None,
    flows: Flows | None = None,
) -> Track:
    end_ns = np.maximum(begin_ns, end_ns)
    return Track(name, begin_ns, end_ns, assign_lanes(begin_ns, end_ns), label, facts or {}, flows)


def _steps(trace: Trace) -> Track:
    table = columns.steps(trace)
    label = [f"step {index}" for index in table.index.tolist()]
    return _track(f"steps ({table.source})", table.begin_ns, table.end_ns, label)


def _phases(trace: Trace) -> list[Track]:
    spans = columns.phases(trace)
    names = trace.metadata["phases"]
    return [
        _track(_of_thread("phases", trace, thread), part.begin_ns, part.end_ns, _names(names, part))
        for thread, part in _by_thread(spans)
    ]


def _exposed(trace: Trace, table: Collectives, arrivals: Arrivals) -> Track:
    exposed = exposures_of(trace)
    waiting = split(exposed, table, arrivals)
    ops = _op_names(trace, table)
    label = [
        f"exposed: {ops[row]}" if row >= 0 else "exposed" for row in exposed.collective.tolist()
    ]
    facts: dict[str, Column] = {
        "waited_us": ns_to_us_of(exposed.waited_ns),
        "for_last_rank_us": ns_to_us_of(waiting.wait_ns),
        "transfer_us": ns_to_us_of(exposed.waited_ns - waiting.wait_ns),
        "last_rank": waiting.culprit,
        "backward": exposed.graph_task,
    }
    return _track("exposed", exposed.begin_ns, exposed.end_ns, label, facts)


def _pauses(trace: Trace) -> Track:
    """Makes the track of intervals in which no thread of the process ran."""
    table = columns.pauses(trace)
    return _track(f"{HOST_PAUSE}s", table.begin_ns, table.end_ns, [HOST_PAUSE] * len(table))


def _waits(trace: Trace, table: Collectives) -> list[Track]:
    training = training_thread(trace)
    ops = dict(zip(table.op_id.tolist(), _op_names(trace, table), strict=True))
    found = []
    for thread, part in _by_thread(columns.waits(trace)):
        if thread != training:
            label = [f"wait: {ops.get(key, 'unknown')}" for key in part.key.tolist()]
            name = f"waits of thread {thread}"
            found.append(_track(name, part.begin_ns, part.end_ns, label))
    return found


def _collectives(trace: Trace, table: Collectives, arrivals: Arrivals, flows: Flows) -> Track:
    """Makes the track of collectives; a slice has length 0 if its completion is unknown."""
    ops = _op_names(trace, table)
    size = np.maximum(table.bytes_in, table.bytes_out)
    label = [
        f"{op} {_size(bytes)}" if bytes else op
        for op, bytes in zip(ops, size.tolist(), strict=True)
    ]
    groups = {group.id: group.label for group in trace.groups.values()}
    dtypes = dict(enumerate(trace.metadata["dtypes"]))
    numbers = columns.stacks(trace, table.op_id)
    is_known = (arrivals.late_rank >= 0) & (table.end_ns > 0)
    until = np.clip(arrivals.last_arrival_ns, table.issue_ns, table.end_ns) - table.issue_ns
    took = (table.end_ns - table.issue_ns).astype(np.float64)
    facts: dict[str, Column] = {
        "seq": np.where(table.seq == schema.NO_SEQ, -1, table.seq),
        "group": [groups.get(group) for group in table.group.tolist()],
        "dtype": [dtypes.get(code) if bytes else None for code, bytes in _pairs(table.dtype, size)],
        "bytes_in": table.bytes_in,
        "bytes_out": table.bytes_out,
        "backward": table.graph_task,
        "until_last_rank_us": ns_to_us_of(np.where(is_known, until, np.nan)),
        "after_last_rank_us": ns_to_us_of(np.where(is_known, took - until, np.nan)),
        "last_rank": arrivals.late_rank,
        "completion": [
            None if exact else "not seen" if end == 0 else "before the end of this slice"
            for exact, end in _pairs(table.end_is_exact, table.end_ns)
        ],
        "issued_by": [_caller(trace, number) for number in numbers.tolist()],
    }
    end_ns = np.where(table.end_ns > 0, table.end_ns, table.issue_ns)
    return _track("collectives in flight", table.issue_ns, end_ns, label, facts, flows)


def _buckets(trace: Trace) -> Track:
    table = columns.buckets(trace)
    label = [f"bucket {index}, {_size(bytes)}" for index, bytes in _pairs(table.index, table.bytes)]
    launched = np.where(table.launch_ns > 0, table.launch_ns - table.ready_ns, np.nan)
    facts: dict[str, Column] = {"bytes": table.bytes, "launched_after_us": ns_to_us_of(launched)}
    return _track("buckets", table.ready_ns, table.end_ns, label, facts)


def _compressor(trace: Trace) -> list[Track]:
    records = of_kind(trace.records, Kind.SPAN)
    spans = Spans(
        key=np.arange(len(records)),
        thread=ints(records["thread"]),
        begin_ns=ints(records["timestamp_ns"]),
        end_ns=ints(records["value"]),
    )
    done, buckets = compressions(trace), columns.buckets(trace)
    schemes = dict(zip(done.op_id.tolist(), done.scheme, strict=True))
    index = dict(_pairs(buckets.op_id, buckets.index))
    stages, op_ids = ints(records["aux"]), ints(records["op_id"])
    tracks = []
    for thread, part in _by_thread(spans):
        ids = op_ids[part.key]
        label = [_stage(stage) for stage in stages[part.key].tolist()]
        facts: dict[str, Column] = {
            "scheme": [schemes.get(op_id) for op_id in ids.tolist()],
            "bucket": np.array([index.get(op_id, -1) for op_id in ids.tolist()], dtype=np.int64),
        }
        name = f"compressor, thread {thread}"
        tracks.append(_track(name, part.begin_ns, part.end_ns, label, facts))
    return tracks


def _within(track: Track, window: Window) -> Track:
    rows = np.flatnonzero(window.holds(track.begin_ns, track.end_ns))
    return replace(
        track,
        begin_ns=np.maximum(track.begin_ns[rows], window.begin_ns),
        end_ns=track.end_ns[rows],
        lane=track.lane[rows],
        label=[track.label[row] for row in rows.tolist()],
        facts={name: _chosen(column, rows) for name, column in track.facts.items()},
        flows=None if track.flows is None else _chosen_flows(track.flows, rows),
    )


def _chosen(column: Column, rows: Ints) -> Column:
    if isinstance(column, list):
        return [column[row] for row in rows.tolist()]
    return column[rows]


def _chosen_flows(flows: Flows, rows: Ints) -> Flows:
    """Returns the arrows of the chosen rows, which must include all rows that have arrows."""
    first = np.concatenate((flows.first[rows], flows.first[-1:]))
    return Flows(flows.received[rows], flows.transfer_begin_ns[rows], first, flows.sent)


def _by_thread(spans: Spans) -> list[tuple[int, Spans]]:
    tracks = []
    for thread in np.unique(spans.thread).tolist():
        rows = spans.thread == thread
        part = Spans(spans.key[rows], spans.thread[rows], spans.begin_ns[rows], spans.end_ns[rows])
        tracks.append((thread, part))
    return tracks


def _of_thread(name: str, trace: Trace, thread: int) -> str:
    steps = columns.steps(trace)
    training = int(steps.thread[0]) if len(steps) else trace.metadata["main_thread"]
    return name if thread == training else f"{name} of thread {thread}"


def _op_names(trace: Trace, table: Collectives) -> list[str]:
    names = trace.metadata["ops"]
    op_names = names if len(names) > 1 else list(schema.OPS)
    return [
        op_names[code] if code < len(op_names) else f"operation {code}"
        for code in table.op.tolist()
    ]


def _names(names: list[str], spans: Spans) -> list[str]:
    phase_names = names if len(names) > 1 else list(schema.PHASES)
    return [
        phase_names[key] if key < len(phase_names) else f"phase {key}" for key in spans.key.tolist()
    ]


def _size(bytes: int) -> str:
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if bytes >= unit:
            return f"{plain_digits(bytes / unit)} {name}"
    return f"{bytes} B"


def _stage(code: int) -> str:
    return schema.STAGES[code] if code < len(schema.STAGES) else f"stage {code}"


def _caller(trace: Trace, number: int) -> str | None:
    frames = trace.stacks.get(number, ())
    return frames[0] if frames else None


def _pairs(one: npt.NDArray[np.generic], other: npt.NDArray[np.generic]) -> list[tuple[int, int]]:
    return list(zip(one.tolist(), other.tolist(), strict=True))


def ns_to_us_of(values: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """Converts a column of nanoseconds to microseconds."""
    scale = ns_to_us(1.0)
    return values.astype(np.float64) * scale


def assign_lanes(begin_ns: Ints, end_ns: Ints) -> Ints:
    """Assigns each span the lowest lane that is free when the span begins.

    A span without length occupies its lane for 1 ns. No assignment needs fewer lanes (Kleinberg and
    Tardos, Algorithm Design, 4.1).
    """
    lanes = np.zeros(len(begin_ns), dtype=np.int64)
    busy: list[tuple[int, int]] = []  # pairs of end and lane
    free: list[int] = []
    opened = 0
    until_ns = np.maximum(end_ns, begin_ns + 1)
    order = np.lexsort((until_ns, begin_ns))
    times = zip(begin_ns[order].tolist(), until_ns[order].tolist(), order.tolist(), strict=True)
    for begin, end, row in times:
        while busy and busy[0][0] <= begin:
            heappush(free, heappop(busy)[1])
        if free:
            lane = heappop(free)
        else:
            lane, opened = opened, opened + 1
        heappush(busy, (end, lane))
        lanes[row] = lane
    return lanes
