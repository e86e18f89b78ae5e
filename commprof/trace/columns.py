"""Tables of a trace's records, with one row per collective, step, phase, wait or bucket."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from commprof.field_groups import FieldGroup
from commprof.trace import schema
from commprof.trace.found_steps import DECLARED, complete_steps, step_marks
from commprof.trace.lookup import among, is_in, look_up, repeated, row_of, rows_of
from commprof.trace.packed import PackedRecords, records_of
from commprof.trace.ranks import RankRows, RankTables, firsts_of, joined
from commprof.trace.reader import Trace
from commprof.trace.schema import Kind, Records

Ints = npt.NDArray[np.int64]

Table = TypeVar("Table")

#: A column of times holds moments or durations. Moments are by the rank's clock: on another clock
#: they are other numbers, and 0 means unknown. Durations are the same on every clock.
MOMENT: Final[Mapping[str, str]] = {"time": "moment"}
DURATION: Final[Mapping[str, str]] = {"time": "duration"}

NO_RECORDS = np.empty(0, dtype=schema.RECORD_DTYPE)
#: Columns with more rows are stored as one value if all of their values are equal.
_LONG = 64


@dataclass(frozen=True)
class Collectives:
    """One row per collective, in order of issue."""

    op_id: Ints
    #: Code of the operation; ``schema.OPS`` names it.
    op: Ints
    group: Ints
    #: Sequence number of the collective in its group, equal on all ranks. For a point-to-point
    #: message, its sequence number between its two ranks, or ``schema.NO_SEQ`` if not known.
    seq: Ints
    #: Root, source or destination, as a rank in the group; 0 if the operation has none.
    peer: Ints
    dtype: Ints
    reduce_op: Ints
    bytes_in: Ints
    bytes_out: Ints
    thread: Ints
    #: Id of the autograd graph task (``Finalizations.span.key``) of the backward pass that issued
    #: the collective; -1 outside of a backward pass.
    graph_task: Ints
    issue_ns: Ints = field(metadata=MOMENT)
    #: True if the tensors are sparse; their sizes may differ from rank to rank.
    sparse: npt.NDArray[np.bool_]
    #: Time at which the operation completed: on the host, or on the device if the device's times
    #: were recorded. If a backend on the host does not report completion (gloo's point-to-point and
    #: reduce-scatter), this is the time at which the wait for the operation returned. 0 if neither
    #: is known.
    end_ns: Ints = field(metadata=MOMENT)
    #: True if the operation completed at ``end_ns``. Otherwise ``end_ns`` is 0 (not known), or the
    #: return of a wait that did not block: the operation had completed some time before.
    end_is_exact: npt.NDArray[np.bool_]
    #: True if the operation ended with an error, at ``end_ns``.
    failed: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        """Number of collectives."""
        return len(self.op_id)


def shifted_ns(time_ns: Ints, shift_ns: Ints) -> Ints:
    """Returns moments that are later by ``shift_ns``; unknown ones stay 0."""
    return np.where(time_ns > 0, time_ns + shift_ns, time_ns)


def shifted(table: Table, shift_ns: Ints) -> Table:
    """Returns a table whose moments are later by ``shift_ns``; unknown ones stay 0."""
    moments = (column.name for column in fields(table) if column.metadata == MOMENT)  # type: ignore[arg-type]
    moved = {name: shifted_ns(getattr(table, name), shift_ns) for name in moments}
    return replace(table, **moved)  # type: ignore[type-var]


@dataclass(frozen=True)
class Steps:
    """One row per complete step."""

    index: Ints
    begin_ns: Ints = field(metadata=MOMENT)
    end_ns: Ints = field(metadata=MOMENT)
    thread: Ints
    #: The event that ends the steps: "declared" by the script, an optimizer's "update", or
    #: "backward".
    source: str = DECLARED

    def __len__(self) -> int:
        """Number of steps."""
        return len(self.index)

    def between(self, rows: slice) -> Steps:
        """Returns some of the rows."""
        return Steps(
            self.index[rows],
            self.begin_ns[rows],
            self.end_ns[rows],
            self.thread[rows],
            self.source,
        )

    def numbered(self, numbers: Ints) -> Steps:
        """Returns the steps with these numbers; ``numbers`` must be in ascending order."""
        chosen = is_in(self.index, numbers)
        return Steps(
            self.index[chosen],
            self.begin_ns[chosen],
            self.end_ns[chosen],
            self.thread[chosen],
            self.source,
        )


@dataclass(frozen=True)
class Spans(FieldGroup):
    """Intervals of threads' time, such as phases, waits or run delays."""

    #: Phase code, operation id, or graph task id; see the function that makes the table.
    key: Ints
    thread: Ints
    begin_ns: Ints = field(metadata=MOMENT)
    end_ns: Ints = field(metadata=MOMENT)

    def __len__(self) -> int:
        """Number of spans."""
        return len(self.key)


@dataclass(frozen=True)
class Finalizations:
    """DDP's wait for its buckets at the end of each backward pass."""

    span: Spans
    #: Wall time minus CPU time of the thread: it waited for a bucket or for a core.
    blocked_ns: Ints = field(metadata=DURATION)
    #: Part of ``blocked_ns`` in which the thread was ready to run and had no core; NaN if capture
    #: did not read it, as in most steps when steps are short.
    no_core_ns: npt.NDArray[np.float64] = field(metadata=DURATION)

    def __len__(self) -> int:
        """Number of waits."""
        return len(self.span)


@dataclass(frozen=True)
class Buckets:
    """One row per gradient bucket of an attached DDP model."""

    op_id: Ints
    group: Ints
    #: Number that is equal on all ranks for the same bucket. With a hook: how many buckets the
    #: model's hook had received before this one. Without a hook: the sequence number of the
    #: bucket's all-reduce in the group.
    seq: Ints
    index: Ints
    #: Hash of the shapes of the bucket's parameters.
    signature: npt.NDArray[np.uint64]
    bytes: Ints
    dtype: Ints
    thread: Ints
    ready_ns: Ints = field(metadata=MOMENT)
    launch_ns: Ints = field(metadata=MOMENT)
    #: Completion of the bucket; 0 if none was recorded.
    end_ns: Ints = field(metadata=MOMENT)

    def __len__(self) -> int:
        """Number of buckets."""
        return len(self.index)


def once_per_trace(make: Callable[[Trace], Table]) -> Callable[[Trace], Table]:
    """Decorates a function that makes a table, so that each trace keeps the table after one call.

    The table lives as long as its trace. Its arrays are read-only, because all callers share them.
    """

    @functools.wraps(make)
    def kept(trace: Trace) -> Table:
        if make not in trace.tables:
            trace.tables[make] = _read_only(make(trace))
        stored: Any = trace.tables[make]
        table: Table = stored.table if type(stored) is RankRows else stored
        return table

    return kept


def keep(trace: Trace, make: Callable[[Trace], Table], table: Table) -> None:
    """Gives a trace the table that ``make``, decorated with ``once_per_trace``, would make."""
    trace.tables[make.__wrapped__] = _read_only(table)  # type: ignore[attr-defined]


def keep_rows(
    traces: Sequence[Trace],
    make: Callable[[Trace], Table],
    whole: Table,
    count: Sequence[int] | Ints,
    cut: Callable[[Table, slice], Table] = rows_of,
) -> None:
    """Gives each of some traces its rows of a table, in place of the table that ``make`` makes.

    Args:
        traces: the traces.
        make: a function that is decorated with ``once_per_trace``.
        whole: the rows of one trace after the other.
        count: number of rows of each trace.
        cut: returns rows of ``whole`` as a table.
    """
    key: Any = make.__wrapped__  # type: ignore[attr-defined]
    _read_only(whole)
    ends = itertools.accumulate(count if isinstance(count, Sequence) else count.tolist(), initial=0)
    for trace, (begin, end) in zip(traces, itertools.pairwise(ends), strict=True):
        trace.tables[key] = RankRows(whole, begin, end, cut)


def tables_of(traces: Sequence[Trace], make: Callable[[Trace], Table]) -> Sequence[Table]:
    """Returns what ``make``, decorated with ``once_per_trace``, returns for each trace.

    If :func:`keep_rows` gave the traces rows of larger tables, :func:`joined` reads columns of the
    result from the larger tables, without making a table for each trace.
    """
    key: Any = make.__wrapped__  # type: ignore[attr-defined]
    stored = [trace.tables.get(key) for trace in traces]
    if not any(type(rows) is RankRows for rows in stored):
        return list(map(make, traces))
    return RankTables(
        [
            rows if type(rows) is RankRows else RankRows.of(make(trace))
            for trace, rows in zip(traces, stored, strict=True)
        ]
    )


def discard(trace: Trace, make: Callable[[Trace], Table]) -> None:
    """Frees the table that ``make``, decorated with ``once_per_trace``, has made of a trace."""
    trace.tables.pop(make.__wrapped__, None)  # type: ignore[attr-defined]


def _read_only(table: Table) -> Table:
    if isinstance(table, dict):
        for part in table.values():
            _read_only(part)
        return table
    for name, column in vars(table).items():
        if isinstance(column, np.ndarray):
            if column.size > _LONG and _is_one_value(column):
                # A column whose value never changes, such as operation or size, is stored as one
                # value.
                column = repeated(column[0], len(column))
                object.__setattr__(table, name, column)
            column.flags.writeable = False
        elif isinstance(column, Spans):
            _read_only(column)
    return table


def _is_one_value(column: npt.NDArray[np.generic]) -> bool:
    """True if a column that is stored value by value has one value in all rows."""
    if column.ndim != 1 or column.strides == (0,):
        return False
    return bool(column[0] == column[-1]) and bool((column == column[0]).all())


@once_per_trace
def collectives(trace: Trace) -> Collectives:
    """Returns the collectives, each issue joined with its completion."""
    issues = of_kind(trace.records, Kind.ISSUE)
    op_id = ints(issues["op_id"])
    ends = of_kind(trace.records, Kind.END)
    waits = of_kind(trace.records, Kind.WAIT)
    # a wait inside the issuing call does not show when the operation completed
    waits = waits.compress((waits["flags"] & schema.FLAG_IN_ISSUE) == 0)
    end_ns = look_up(op_id, ints(ends["op_id"]), ints(ends["timestamp_ns"]))
    waited_until_ns = look_up(op_id, ints(waits["op_id"]), ints(waits["value"]))
    on_host = issues["flags"] & schema.FLAG_DEVICE_ASYNC == 0
    blocked_until_ns = look_up(op_id, ints(waits["op_id"]), ints(waits["value"]) * blocked(waits))
    return Collectives(
        op_id=op_id,
        op=ints(issues["op"]),
        group=ints(issues["group"]),
        seq=ints(issues["seq"]),
        peer=ints(issues["aux"]),
        dtype=ints(issues["dtype"]),
        reduce_op=ints(issues["reduce_op"]),
        bytes_in=ints(issues["bytes_in"]),
        bytes_out=ints(issues["bytes_out"]),
        thread=ints(issues["thread"]),
        graph_task=ints(issues["value"]) - 1,
        issue_ns=ints(issues["timestamp_ns"]),
        sparse=issues["flags"] & schema.FLAG_SPARSE != 0,
        end_ns=np.where((end_ns == 0) & on_host, waited_until_ns, end_ns),
        end_is_exact=(end_ns > 0) | ((blocked_until_ns > 0) & on_host),
        failed=np.isin(op_id, ints(ends["op_id"][ends["flags"] & schema.FLAG_FAILED != 0])),
    )


def blocked(waits: Records) -> npt.NDArray[np.bool_]:
    """Returns a mask of the waits that blocked.

    At the end of such a wait the operation has just completed.
    """
    mask: npt.NDArray[np.bool_] = (
        ints(waits["value"]) - ints(waits["timestamp_ns"]) >= schema.BLOCKED_NS
    )
    return mask


@once_per_trace
def steps(trace: Trace) -> Steps:
    """Returns the complete steps, which lie between successive boundaries of ``step_marks``."""
    marks = step_marks(trace.records)
    ends = complete_steps(marks.step, marks.ends, np.zeros(len(marks.step), dtype=np.int64))
    return Steps(
        index=marks.step[ends],
        begin_ns=marks.time_ns[ends - 1],
        end_ns=marks.time_ns[ends],
        thread=marks.thread[ends],
        source=marks.source,
    )


def steps_of_ranks(traces: Sequence[Trace], numbers: Ints) -> tuple[Steps, Ints]:
    """Returns the steps of all ranks whose numbers are among ``numbers``.

    ``numbers`` must be in ascending order. The rows of one rank follow those of the rank before.
    Also returns the first row of each rank, followed by the number of all rows.
    """
    tables = tables_of(traces, steps)
    chosen = np.flatnonzero(is_in(joined(tables, "index"), numbers))
    index, begin_ns, end_ns, thread = (
        joined(tables, name)[chosen] for name in ("index", "begin_ns", "end_ns", "thread")
    )
    return Steps(index, begin_ns, end_ns, thread), np.searchsorted(chosen, firsts_of(tables))


@once_per_trace
def phases(trace: Trace) -> Spans:
    """Returns the phases; ``key`` is the phase code."""
    records = of_kind(trace.records, Kind.PHASE)
    return _spans(records, ints(records["aux"]))


@once_per_trace
def waits(trace: Trace) -> Spans:
    """Returns the times that threads were blocked by an operation; ``key`` is the operation's id.

    A thread was blocked in ``Work.wait``, in a future's ``wait``, or in the call that issued the
    operation.
    """
    records = of_kind(trace.records, Kind.WAIT)
    return _spans(records, ints(records["op_id"]))


@once_per_trace
def pauses(trace: Trace) -> Spans:
    """Returns the times in which no thread of the process ran; ``key`` is 0."""
    records = of_kind(trace.records, Kind.PAUSE)
    return _spans(records, np.zeros(len(records), dtype=np.int64))


@once_per_trace
def run_delays(trace: Trace) -> Spans:
    """Returns intervals in which threads lacked a core; ``key``: time without a core in ns."""
    records = of_kind(trace.records, Kind.RUN_DELAY)
    return _spans(records, ints(records["bytes_in"]))


@once_per_trace
def helpers_cpu(trace: Trace) -> Spans:
    """Returns the intervals of ``run_delays``; ``key`` is the CPU time of helper threads, in ns.

    An interval belongs to one thread; helper threads are all other threads of the process, such as
    the backend's. If the rank has several intra-op threads, or their number is unknown, ``key`` is
    0: the other intra-op threads do the rank's own work, and must not count as helper threads.
    """
    records = of_kind(trace.records, Kind.RUN_DELAY)
    return _spans(records, has_one_thread(trace) * ints(records["bytes_out"]))


def has_one_thread(trace: Trace) -> bool:
    """True if the rank has one intra-op thread: all other threads of its process are helpers."""
    return bool(trace.metadata.get("threads") == 1)


def own_run_delays(trace: Trace) -> Spans:
    """Returns the intervals of ``run_delays``; ``key`` bounds the delay caused by helper threads.

    ``key`` is the time without a core in ns, but at most the CPU time of the helper threads. This
    is an upper bound, because helper threads may have run on another core.
    """
    found = run_delays(trace)
    return replace(found, key=np.minimum(found.key, helpers_cpu(trace).key))


#: By counter of the kernel: the member of a ``Kind.HOST_COUNTS`` record that holds the counter.
HOST_COUNTS = {
    name: field.member
    for name, field in schema.FIELDS[Kind.HOST_COUNTS].items()
    if field.content == "number"
}


@once_per_trace
def host_counts(trace: Trace) -> dict[str, Spans]:
    """Returns intervals of threads for each counter in ``HOST_COUNTS``.

    ``key`` is the increase of the counter. An interval is recorded if the thread lacked a core, had
    a major page fault, or had many minor page faults in it.
    """
    records = of_kind(trace.records, Kind.HOST_COUNTS)
    spans = _spans(records, np.zeros(len(records), dtype=np.int64))
    return {name: replace(spans, key=ints(records[of])) for name, of in HOST_COUNTS.items()}


@once_per_trace
def finalizations(trace: Trace) -> Finalizations:
    """Returns DDP's waits for its buckets; ``span.key`` is the id of the autograd graph task.

    A pass that the script finalises itself, by ``finalize_backward()``, has only that finalisation:
    DDP does not wait at the end of such a pass.
    """
    begin, end = _paired_finalizations(trace.records)
    wall = ints(end["timestamp_ns"]) - ints(begin["timestamp_ns"])
    cpu = ints(end["value"]) - ints(begin["value"])
    run_delay = ints(end["bytes_in"]) - ints(begin["bytes_in"])
    was_read = (begin["flags"] & end["flags"] & schema.FLAG_RUN_DELAY_READ) != 0
    return Finalizations(
        span=Spans(
            key=ints(begin["op_id"]),
            thread=ints(begin["thread"]),
            begin_ns=ints(begin["timestamp_ns"]),
            end_ns=ints(end["timestamp_ns"]),
        ),
        blocked_ns=np.clip(wall - cpu, 0, wall),
        no_core_ns=np.where(was_read, np.clip(run_delay, 0, np.clip(wall - cpu, 0, wall)), np.nan),
    )


def finalized_passes(trace: Trace) -> Ints:
    """Returns the id of the autograd graph task of each of DDP's waits for its buckets."""
    return ints(_paired_finalizations(trace.records)[0]["op_id"])


def _paired_finalizations(records: Records) -> tuple[Records, Records]:
    """Returns the begins of finalisations, and for each the next end on the same thread."""
    begin, end = of_kind(records, Kind.FINALIZE_BEGIN), of_kind(records, Kind.FINALIZE_END)
    if not _take_turns(begin, end):
        both = of_kinds(records, Kind.FINALIZE_BEGIN, Kind.FINALIZE_END)
        both = both.take(np.argsort(both["thread"], kind="stable"))
        first, second = both[:-1], both[1:]
        paired = np.flatnonzero(
            (first["kind"] == Kind.FINALIZE_BEGIN)
            & (second["kind"] == Kind.FINALIZE_END)
            & (first["op_id"] == second["op_id"])
            & (first["thread"] == second["thread"])
        )
        begin, end = first.take(paired), second.take(paired)
    final = finalises(begin["op_id"], begin["flags"])
    return (begin, end) if final.all() else (begin.compress(final), end.compress(final))


def _take_turns(begin: Records, end: Records) -> bool:
    """True if begins and ends alternate on one thread, so that each pass was finalised once."""
    if len(begin) != len(end):
        return False
    if not len(begin):
        return True
    thread, begin_ns, end_ns = begin["thread"], begin["timestamp_ns"], end["timestamp_ns"]
    return bool(
        (thread == thread[0]).all()
        and (end["thread"] == thread[0]).all()
        and (begin["op_id"] == end["op_id"]).all()
        and (begin_ns < end_ns).all()
        and (end_ns[:-1] < begin_ns[1:]).all()
    )


def finalises(graph_task: Ints, flags: Ints) -> npt.NDArray[np.bool_]:
    """Returns a mask of the finalisations that wait for the buckets of their backward pass.

    If the script finalised a pass itself, only the script's finalisation waits for them.
    """
    manual = flags & schema.FLAG_MANUAL_FINALIZE != 0
    result: npt.NDArray[np.bool_] = manual | ~np.isin(graph_task, graph_task[manual])
    return result


@once_per_trace
def buckets(trace: Trace) -> Buckets:
    """Returns the buckets of attached DDP models; empty without ``commprof.attach``.

    Without a DDP hook, a bucket's operation id and end are those of the bucket's all-reduce.
    """
    records = of_kind(trace.records, Kind.BUCKET)
    if not len(records):
        return _no_buckets()
    ends = of_kinds(trace.records, Kind.BUCKET_END, Kind.END)
    ends = ends.compress(ends["flags"] & schema.FLAG_DEVICE_TIME == 0)
    return Buckets(
        op_id=ints(records["op_id"]),
        group=ints(records["group"]),
        seq=ints(records["seq"]),
        index=ints(records["aux"]),
        signature=records["bytes_out"].astype(np.uint64),
        bytes=ints(records["bytes_in"]),
        dtype=ints(records["dtype"]),
        thread=ints(records["thread"]),
        ready_ns=ints(records["timestamp_ns"]),
        launch_ns=ints(records["value"]),
        end_ns=look_up(ints(records["op_id"]), ints(ends["op_id"]), ints(ends["timestamp_ns"])),
    )


@functools.cache
def _no_buckets() -> Buckets:
    none, signature = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint64)
    return Buckets(none, none, none, none, signature, none, none, none, none, none, none)


def recorded(trace: Trace, kind: schema.Kind, name: str) -> npt.NDArray[Any]:
    """Returns a field of the records of one kind, in their order.

    ``name``: name of the field in ``schema.FIELDS``. Numbers are int64, or float64 if the field
    holds a double.
    """
    field = schema.FIELDS[kind][name]
    values = of_kind(trace.records, kind)[field.member]
    if field.content == "real":
        return values.astype(np.uint64).view(np.float64)
    return ints(values)


def of_operations(trace: Trace, op_id: Ints, kind: schema.Kind, name: str) -> npt.NDArray[Any]:
    """Returns a field of the records of one kind for each operation; 0 for one without a record.

    Args:
        trace: the trace.
        op_id: ids of the operations, or of the buckets.
        kind: kind of the records, which has a field ``op_id``.
        name: name of the field, as in :func:`recorded`.
    """
    row = row_of(op_id, recorded(trace, kind, "op_id"))
    return np.append(recorded(trace, kind, name), 0)[row]


def stacks(trace: Trace, op_id: Ints) -> Ints:
    """Returns the number in ``Trace.stacks`` of each operation's stack; 0 if it has none."""
    return of_operations(trace, op_id, Kind.STACK, "stack")


def of_kind(records: Records, kind: schema.Kind) -> Records:
    """Returns the records of one kind."""
    return records_of(records, kind)


def of_kinds(records: Records, *kinds: schema.Kind) -> Records:
    """Returns the records of some kinds, in their order."""
    if isinstance(records, PackedRecords):
        return records.of_kinds(*kinds)
    return records.compress(one_of(records, *kinds))


def one_of(records: Records, *kinds: schema.Kind) -> npt.NDArray[np.bool_]:
    """Returns a mask of the records of some kinds."""
    return among(records["kind"], *kinds)


def ints(values: npt.NDArray[np.generic]) -> Ints:
    """Converts a field to signed integers, which can be subtracted.

    If the field has the same value in all rows, the result is read-only and stores this value once.
    """
    if values.strides == (0,) and len(values):
        return repeated(values[0].astype(np.int64), len(values))
    return values.astype(np.int64)


def _spans(records: Records, key: Ints) -> Spans:
    return Spans(
        key=key,
        thread=ints(records["thread"]),
        begin_ns=ints(records["timestamp_ns"]),
        end_ns=ints(records["value"]),
    )


@dataclass(frozen=True)
class Compressions:
    """One row per bucket that a compressor has sent."""

    #: Operation id of the bucket.
    op_id: Ints
    scheme: tuple[str, ...]
    #: Size of this rank's encoded gradients, and number of bytes that the rank sent for the bucket.
    payload_bytes: Ints
    wire_bytes: Ints
    #: True if some rank's gradients were not finite.
    non_finite: npt.NDArray[np.bool_]
    #: When the compressor's thread began with the bucket.
    begin_ns: Ints = field(metadata=MOMENT)
    #: [stages of ``schema.STAGES``, buckets]: sum of the times of each stage.
    stage_ns: Ints = field(metadata=DURATION)
    #: Figures of kind QUALITY, see ``commprof.trace.schema``. A figure that was not measured is
    #: NaN; a count is then -1.
    relative_error: npt.NDArray[np.float64]
    cosine: npt.NDArray[np.float64]
    residual_ratio: npt.NDArray[np.float64]
    zeroed: Ints
    saturated: Ints

    def __len__(self) -> int:
        """Number of buckets."""
        return len(self.op_id)


@once_per_trace
def compressions(trace: Trace) -> Compressions:
    """Returns the buckets that a compressor has sent; empty without a compressor."""
    records = of_kind(trace.records, Kind.COMPRESSION)
    spans = of_kind(trace.records, Kind.SPAN)
    op_id = ints(records["op_id"])
    row = row_of(op_id, recorded(trace, Kind.QUALITY, "op_id"))

    def quality(name: str, unmeasured: float) -> npt.NDArray[Any]:
        return np.append(recorded(trace, Kind.QUALITY, name), unmeasured)[row]

    return Compressions(
        op_id=op_id,
        scheme=tuple(_name(value) for value in records["value"].tolist()),
        payload_bytes=recorded(trace, Kind.COMPRESSION, "payload_bytes"),
        wire_bytes=recorded(trace, Kind.COMPRESSION, "wire_bytes"),
        non_finite=(records["flags"] & schema.FLAG_NON_FINITE) != 0,
        begin_ns=look_up(op_id, ints(spans["op_id"]), ints(spans["timestamp_ns"])),
        stage_ns=_stage_ns(op_id, spans),
        relative_error=quality("relative_error", np.nan),
        cosine=quality("cosine", np.nan),
        residual_ratio=quality("residual_ratio", np.nan),
        zeroed=quality("zeroed", -1),
        saturated=quality("saturated", -1),
    )


def _stage_ns(op_id: Ints, spans: Records) -> Ints:
    """Returns the summed length of spans in ns, as an array ``[stages, buckets]``.

    Spans of one stage do not overlap. ``op_id``: operation id of each bucket.
    """
    result = np.zeros((len(schema.STAGES), len(op_id)), dtype=np.int64)
    row = row_of(ints(spans["op_id"]), op_id)
    known = (row >= 0) & (spans["aux"] < len(schema.STAGES))
    length = ints(spans["value"]) - ints(spans["timestamp_ns"])
    np.add.at(result, (ints(spans["aux"])[known], row[known]), length[known])
    return result


def _name(value: int) -> str:
    """Decodes a scheme's name, with "?" for bytes that are not printable ASCII."""
    text = value.to_bytes(8, "little").rstrip(b"\0").decode("ascii", "replace")
    return "".join(c if c.isprintable() and c.isascii() else "?" for c in text)
