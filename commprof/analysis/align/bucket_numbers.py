"""Which of DDP's gradient buckets a collective belongs to.

commprof's DDP hook says it: what is issued while it launches a bucket, or by a compressor's thread
while it works on one, is that bucket's. Without the hook DDP's own all-reduces tell: it launches
its buckets in the order of their numbers, in one backward pass, and waits for all of them at its
end. Where another all-reduce may be among them (SyncBatchNorm's, say, or a second DDP model's),
none of that pass has a number.
"""

from __future__ import annotations

import numpy as np

from commprof.analysis.align.interfaces import ddp_logs, logged_bucket_sizes
from commprof.trace import columns
from commprof.trace.columns import Buckets, Collectives, Ints
from commprof.trace.reader import Trace
from commprof.trace.schema import OPS, Kind

#: Of a collective that belongs to no bucket, or to one that nobody knows.
NO_BUCKET = -1
_ALL_REDUCE = OPS.index("all_reduce")


def bucket_numbers(trace: Trace, table: Collectives) -> Ints:
    """Per collective of one rank the index of its bucket; ``NO_BUCKET`` where there is none.

    Args:
        trace: as it was recorded, on the host's clock.
        table: the collectives of this trace, on any clock.
    """
    hooked = columns.buckets(trace)
    known, number = _by_hook(trace, hooked) if len(hooked) else _by_order(trace)
    return columns.look_up(table.op_id, known, number + 1) - 1


def _by_hook(trace: Trace, hooked: Buckets) -> tuple[Ints, Ints]:
    """Operations and their buckets' indices, from the hook and the compressors' pieces of work."""
    issues = columns.of_kind(trace.records, Kind.ISSUE)
    op_id, thread = columns.ints(issues["op_id"]), columns.ints(issues["thread"])
    at = columns.ints(issues["timestamp_ns"])
    spans = columns.of_kind(trace.records, Kind.SPAN)
    span_thread, span_begin = columns.ints(spans["thread"]), columns.ints(spans["timestamp_ns"])
    span_of = columns.look_up(columns.ints(spans["op_id"]), hooked.op_id, hooked.index + 1) - 1
    found = [
        # The Python capture gives the bucket and its exchange one number.
        columns.look_up(op_id, hooked.op_id, hooked.index + 1) - 1,
        _within(at, thread, hooked.ready_ns, hooked.launch_ns, hooked.thread, hooked.index),
        _within(at, thread, span_begin, columns.ints(spans["value"]), span_thread, span_of),
    ]
    number = np.maximum.reduce(found)
    return op_id, number


def _within(at: Ints, thread: Ints, begin: Ints, end: Ints, of_thread: Ints, number: Ints) -> Ints:
    """Per time the number of the stretch that it lies in; those of one thread do not overlap."""
    result = np.full(len(at), NO_BUCKET, dtype=np.int64)
    for each in np.unique(of_thread).tolist():
        mine = np.flatnonzero(of_thread == each)
        mine = mine[np.argsort(begin[mine], kind="stable")]
        rows = np.flatnonzero(thread == each)
        last = np.searchsorted(begin[mine], at[rows], side="right") - 1
        inside = (last >= 0) & (at[rows] <= end[mine[np.maximum(last, 0)]])
        result[rows[inside]] = number[mine[last[inside]]]
    return result


def _by_order(trace: Trace) -> tuple[Ints, Ints]:
    """Operations and their turns among the all-reduces of the backward pass that DDP ended."""
    table = columns.collectives(trace)
    passes, ends = np.unique(columns.finalizations(trace).span.key, return_counts=True)
    rows = np.flatnonzero((table.op == _ALL_REDUCE) & np.isin(table.graph_task, passes[ends == 1]))
    rows = rows[np.lexsort((table.issue_ns[rows], table.graph_task[rows]))]
    _, first, count = np.unique(table.graph_task[rows], return_index=True, return_counts=True)
    turn = np.arange(len(rows)) - np.repeat(first, count)
    allowed = _logged_sizes(trace)
    if allowed:
        parts = zip(first.tolist(), (first + count).tolist(), strict=True)
        whole = [sorted(table.bytes_in[rows[a:b]].tolist()) in allowed for a, b in parts]
        turn = np.where(np.repeat(whole, count), turn, NO_BUCKET)
    return table.op_id[rows], turn


def _logged_sizes(trace: Trace) -> list[list[int]]:
    """Sizes of all buckets by DDP's own logs, before and after it rebuilt them; in bytes, sorted.

    Empty where the trace has no such log.
    """
    return [
        sorted(sizes)
        for log in ddp_logs(trace)
        for key in ("bucket_sizes", "rebuilt_bucket_sizes")
        if (sizes := logged_bucket_sizes(log, key))
    ]
