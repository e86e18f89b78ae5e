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

#: Marks of columns that hold times. Moments depend on the clock, and 0 means unknown. Durations do
#: not depend on the clock.
MOMENT: Final[Mapping[str, str]] = {"time": "moment"}
DURATION: Final[Mapping[str, str]] = {"time": "duration"}

NO_RECORDS = np.empty(0, dtype=schema.RECORD_DTYPE)
#: Columns with more rows are stored as one value if all of their values are equal.
_LONG = 64


@dataclass(frozen=True)
class Collectives:
    """One row per collective, in order of issue."""

    op_id: Ints
    #: Index in ``schema.OPS``.
    op: Ints
    group: Ints
    #: Sequence number in the group, equal on all ranks. For a message between two ranks: sequence
    #: number between these ranks, or ``schema.NO_SEQ`` if not known.
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
    #: Time at which the operation completed: on the device if the device's times were recorded, and
    #: otherwise on the host. 0 if not known. gloo does not report the completion of messages and
    #: reduce-scatters: for them, this is the time at which a wait returned.
    end_ns: Ints = field(metadata=MOMENT)
    #: True if the operation completed at ``end_ns``. Otherwise ``end_ns`` is 0, or the operation
    #: may have completed earlier.
    end_is_exact: npt.NDArray[np.bool_]
    failed: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        """Number of collectives."""
        return len(self.op_id)


def shifted_ns(time_ns: Ints, shift_ns: Ints) -> Ints:
    """Returns moments that are later by ``shift_ns``; unknown moments stay 0."""
    return np.where(time_ns > 0, time_ns + shift_ns, time_ns)


def shifted(table: Table, shift_ns: Ints) -> Table:
    """Returns a table whose moments are later by ``shift_ns``; unknown moments stay 0."""
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
    #: What ends a step: the script ("declared"), an optimizer's update ("update"), or a backward
    #: pass ("backward").
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

    #: For the meaning, see the function that makes the table.
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
    #: Wall time minus CPU time of the thread, which waited for a bucket or for a core.
    blocked_ns: Ints = field(metadata=DURATION)
    #: Part of ``blocked_ns`` in which the thread was ready to run but had no core; NaN if not
    #: measured.
    no_core_ns: npt.NDArray[np.float64] = field(metadata=DURATION)

    def __len__(self) -> int:
        """Number of waits."""
        return len(self.span)


@dataclass(frozen=True)
class Buckets:
    """One row per gradient bucket of an attached DDP model."""

    op_id: Ints
    group: Ints
    #: Number of the bucket, equal on all ranks. With a hook: the number of buckets that the model's
    #: hook had received before. Without a hook: the sequence number of the bucket's all-reduce.
    seq: Ints
    index: Ints
    #: Hash of the shapes of the bucket's parameters.
    signature: npt.NDArray[np.uint64]
    bytes: Ints
    dtype: Ints
    thread: Ints
    ready_ns: Ints = field(metadata=MOMENT)
    launch_ns: Ints = field(metadata=MOMENT)
    #: Time at which the bucket was complete; 0 if not recorded.
    end_ns: Ints = field(metadata=MOMENT)

    def __len__(self) -> int:
        """Number of buckets."""
        return len(self.index)


def once_per_trace(make: Callable[[Trace], Table]) -> Callable[[Trace], Table]:
    """Decorates a function that makes a table of a trace, so that the trace keeps the table.

    The table's arrays are read-only, because all callers share them.
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
    """Stores a table in a trace, in place of the table that ``make`` would make."""
    trace.tables[make.__wrapped__] = _read_only(table)  # type: ignore[attr-defined]


def keep_rows(
    traces: Sequence[Trace],
    make: Callable[[Trace], Table],
    whole: Table,
    count: Sequence[int] | Ints,
    cut: Callable[[Table, slice], Table] = rows_of,
) -> None:
    """Stores in each trace its rows of a table, in place of the table that ``make`` would make.

    Args:
        traces: the traces.
        make: a function that is decorated with ``once_per_trace``.
        whole: table with the rows of all traces, trace by trace.
        count: number of rows of each trace.
        cut: function that returns rows of ``whole`` as a table.
    """
    key: Any = make.__wrapped__  # type: ignore[attr-defined]
    _read_only(whole)
    ends = itertools.accumulate(count if isinstance(count, Sequence) else count.tolist(), initial=0)
    for trace, (begin, end) in zip(traces, itertools.pairwise(ends), strict=True):
        trace.tables[key] = RankRows(whole, begin, end, cut)


def tables_of(traces: Sequence[Trace], make: Callable[[Trace], Table]) -> Sequence[Table]:
    """Returns the table of each trace; ``make`` must be decorated with ``once_per_trace``.

    If :func:`keep_rows` stored the rows, :func:`joined` reads columns without making the tables.
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
    """Frees the table that ``make`` has stored in a trace."""
    trace.tables.pop(make.__wrapped__, None)  # type: ignore[attr-defined]


def _read_only(table: Table) -> Table:
    if isinstance(table, dict):
        for part in table.values():
            _read_only(part)
        return table
    for name, column in vars(table).items():
        if isinstance(column, np.ndarray):
            if column.size > _LONG and _is_one_value(column):
                column = repeated(column[0], len(column))
                object.__setattr__(table, name, column)
            column.flags.writeable = False
        elif isinstance(column, Spans):
            _read_only(column)
    return table


def _is_one_value(column: npt.NDArray[np.generic]) -> bool:
    """True if a column stores the same value for every row."""
    if column.ndim != 1 or column.strides == (0,):
        return False
    return bool(column[0] == column[-1]) and bool((column == column[0]).all())


@once_per_trace
def collectives(trace: Trace) -> Collectives:
    """Returns the collectives of a trace."""
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
    """Returns the complete steps of a trace."""
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
    """Returns the steps with the given numbers, rank by rank.

    ``numbers`` must be in ascending order. Also returns the first row of each rank, followed by the
    number of all rows.
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
    """Returns intervals in which a thread waited for an operation; ``key`` is the operation's id.

    A thread waits in ``Work.wait``, in a future's ``wait``, or in the call that issues the
    operation. Some of the waits did not block; see :func:`blocked`.
    """
    records = of_kind(trace.records, Kind.WAIT)
    return _spans(records, ints(records["op_id"]))


@once_per_trace
def pauses(trace: Trace) -> Spans:
    """Returns the intervals in which no thread of the process ran; ``key`` is 0."""
    records = of_kind(trace.records, Kind.PAUSE)
    return _spans(records, np.zeros(len(records), dtype=np.int64))


@once_per_trace
def run_delays(trace: Trace) -> Spans:
    """Returns intervals of threads between readings of the kernel's run delay.

    ``key`` is the time in the interval in which the thread had no core, in ns; it may be 0.
    """
    records = of_kind(trace.records, Kind.RUN_DELAY)
    return _spans(records, ints(records["bytes_in"]))


@once_per_trace
def helpers_cpu(trace: Trace) -> Spans:
    """Returns the intervals of ``run_delays``; ``key`` is the CPU time of helper threads, in ns.

    Helper threads are all threads of the process except the interval's thread. ``key`` is 0 unless
    the rank has exactly one intra-op thread, because intra-op threads do the rank's own work.
    """
    records = of_kind(trace.records, Kind.RUN_DELAY)
    return _spans(records, has_one_thread(trace) * ints(records["bytes_out"]))


def has_one_thread(trace: Trace) -> bool:
    """True if the rank is known to have exactly one intra-op thread."""
    return bool(trace.metadata.get("threads") == 1)


def own_run_delays(trace: Trace) -> Spans:
    """Returns the intervals of ``run_delays``; ``key`` is the largest delay by helpers in ns.

    Such a delay is at most the time without a core, and at most the CPU time of the helper threads.
    """
    found = run_delays(trace)
    return replace(found, key=np.minimum(found.key, helpers_cpu(trace).key))


#: For each counter of the kernel: the member of ``Kind.HOST_COUNTS`` that holds the counter.
HOST_COUNTS = {
    name: field.member
    for name, field in schema.FIELDS[Kind.HOST_COUNTS].items()
    if field.content == "number"
}


@once_per_trace
def host_counts(trace: Trace) -> dict[str, Spans]:
    """Returns intervals of threads for each counter in ``HOST_COUNTS``.

    ``key`` is the increase of the counter. An interval is recorded only if the thread lacked a
    core, had a major page fault, or had many minor page faults.
    """
    records = of_kind(trace.records, Kind.HOST_COUNTS)
    spans = _spans(records, np.zeros(len(records), dtype=np.int64))
    return {name: replace(spans, key=ints(records[of])) for name, of in HOST_COUNTS.items()}


@once_per_trace
def finalizations(trace: Trace) -> Finalizations:
    """Returns DDP's waits for its buckets; ``span.key`` is the id of the autograd graph task.

    If the script calls ``finalize_backward()`` for a pass, only this call counts: DDP then does not
    wait at the end of the pass.
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
    """True if begins and ends alternate, all on one thread."""
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

    If the script finalised a pass, only the script's finalisation waits for the buckets.
    """
    manual = flags & schema.FLAG_MANUAL_FINALIZE != 0
    result: npt.NDArray[np.bool_] = manual | ~np.isin(graph_task, graph_task[manual])
    return result


@once_per_trace
def buckets(trace: Trace) -> Buckets:
    """Returns the buckets of DDP models.

    Empty without ``commprof.attach``, except in a trace of ``profiler_steps.with_passes``.

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
    """Returns a field of all records of one kind.

    ``name`` is the field's name in ``schema.FIELDS``. The values are int64, or float64 if the field
    holds a double.
    """
    field = schema.FIELDS[kind][name]
    values = of_kind(trace.records, kind)[field.member]
    if field.content == "real":
        return values.astype(np.uint64).view(np.float64)
    return ints(values)


def of_operations(trace: Trace, op_id: Ints, kind: schema.Kind, name: str) -> npt.NDArray[Any]:
    """Returns a recorded field of each operation; 0 for an operation without a record.

    Args:
        trace: the trace.
        op_id: ids of the operations, or of the buckets.
        kind: kind of the records, which has a field ``op_id``.
        name: name of the field, as in :func:`recorded`.
    """
    row = row_of(op_id, recorded(trace, kind, "op_id"))
    return np.append(recorded(trace, kind, name), 0)[row]


def stacks(trace: Trace, op_id: Ints) -> Ints:
    """Returns the key in ``Trace.stacks`` of each operation; 0 for operations without a stack."""
    return of_operations(trace, op_id, Kind.STACK, "stack")


def of_kind(records: Records, kind: schema.Kind) -> Records:
    """Returns the records of one kind."""
    return records_of(records, kind)


def of_kinds(records: Records, *kinds: schema.Kind) -> Records:
    """Returns the records of some kinds, in unchanged order."""
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

    op_id: Ints
    scheme: tuple[str, ...]
    #: Bytes of this rank's encoded gradients, and bytes that the rank sent for the bucket.
    payload_bytes: Ints
    wire_bytes: Ints
    #: True if some rank's gradients were not finite.
    non_finite: npt.NDArray[np.bool_]
    #: Time at which the compressor's thread began with the bucket.
    begin_ns: Ints = field(metadata=MOMENT)
    #: ``[stage, bucket]``: total time of each stage of ``schema.STAGES``.
    stage_ns: Ints = field(metadata=DURATION)
    #: Fields of records of kind QUALITY. If not measured, a real number is NaN and a count is -1.
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
    result = np.zeros((len(schema.STAGES), len(op_id)), dtype=np.int64)
    row = row_of(ints(spans["op_id"]), op_id)
    known = (row >= 0) & (spans["aux"] < len(schema.STAGES))
    length = ints(spans["value"]) - ints(spans["timestamp_ns"])
    np.add.at(result, (ints(spans["aux"])[known], row[known]), length[known])
    return result


def _name(value: int) -> str:
    text = value.to_bytes(8, "little").rstrip(b"\0").decode("ascii", "replace")
    return "".join(c if c.isprintable() and c.isascii() else "?" for c in text)
