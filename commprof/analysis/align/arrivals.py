"""Finds when ranks arrive at collectives and gradient buckets, and which rank comes last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from commprof.analysis.align.matching import Matching, last_awaited, matched
from commprof.trace import columns
from commprof.trace.columns import MOMENT, Buckets, Collectives, Finalizations, Ints
from commprof.trace.lookup import distinct_rows
from commprof.trace.ranks import Narrow, joined
from commprof.trace.reader import Trace
from commprof.trace.schema import Kind


def _none() -> Ints:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class BucketArrivals:
    """Gradient buckets of one rank, in the order in which commprof recorded them.

    A hook may exchange a bucket in several collectives that it issues one after another. So a rank
    counts as arrived when its gradients are ready.
    """

    #: Id of the backward pass that waited for the bucket; -1 if unknown.
    graph_task: Ints = field(default_factory=_none)
    ready_ns: Ints = field(default_factory=_none, metadata=MOMENT)
    #: Time at which the mean of the ranks' gradients was ready; 0 if not recorded.
    end_ns: Ints = field(default_factory=_none, metadata=MOMENT)
    #: Time at which the last rank's gradients were ready; 0 if a rank did not record the bucket.
    last_arrival_ns: Ints = field(default_factory=_none, metadata=MOMENT)
    late_rank: Narrow = field(default_factory=_none)
    #: Index of the bucket's exchange, the same on all ranks; -1 if a rank of the group did not
    #: record the bucket. All indices in ``Arrivals.collective`` are smaller.
    number: Ints = field(default_factory=_none)

    def __len__(self) -> int:
        """Number of buckets."""
        return len(self.graph_task)


@dataclass(frozen=True)
class Arrivals:
    """The last arrival that one rank awaits, for each row of its ``Collectives`` table.

    :mod:`commprof.analysis.align.matching` explains which arrivals a rank awaits.
    """

    #: Issue time of the rank that arrived last; 0 if the collective is not complete, see
    #: ``Matching.complete``.
    last_arrival_ns: Ints = field(metadata=MOMENT)
    #: Global rank that arrived last; -1 if unknown.
    late_rank: Narrow
    #: Index of the collective, the same on all ranks; -1 if the collective is not complete.
    collective: Ints
    buckets: BucketArrivals = field(default_factory=BucketArrivals)

    def without_times(self) -> Arrivals:
        """Returns a copy without times and late ranks.

        Times and late ranks are needed only to divide waits into waiting for late ranks and
        transfer.
        """
        return replace(self, last_arrival_ns=_none(), late_rank=_none())


def clocks_are_shared(traces: Sequence[Trace]) -> bool:
    """True if all ranks read the same CLOCK_MONOTONIC, in one boot and one time namespace."""
    if len(traces) == 1:
        return True
    keys = {
        (trace.metadata["machine"]["boot_id"], trace.metadata["machine"]["time_namespace"])
        for trace in traces
    }
    return len(keys) == 1 and keys != {("", "")}


def match_arrivals(
    matching: Matching, traces: Sequence[Trace], tables: Sequence[Collectives]
) -> list[Arrivals]:
    """Finds the last arrival that each rank awaits, for each collective and message.

    ``matching`` is the result of :func:`matching.match`. Times must be on a common clock, see
    :func:`clocks_are_shared`.
    """
    issue_ns = joined(tables, "issue_ns")
    awaited = last_awaited(matching, traces, tables, issue_ns)
    last_ns, late = (matching.split(part) for part in matching.at(issue_ns, awaited))
    number = matching.split(matching.numbers())
    buckets = bucket_arrivals(traces, len(matching.complete))
    return [Arrivals(*parts) for parts in zip(last_ns, late, number, buckets, strict=True)]


def bucket_arrivals(traces: Sequence[Trace], first_number: int) -> list[BucketArrivals]:
    """Finds the last rank to arrive at each gradient bucket of the models given to ``attach``.

    If a rank of the group did not record a bucket, the bucket's ``last_arrival_ns`` is 0, and its
    ``late_rank`` and ``number`` are -1.

    Args:
        traces: traces of the ranks, on a common clock.
        first_number: smallest ``number`` to give to a bucket; collectives have smaller numbers.
    """
    if not any(len(columns.of_kind(trace.records, Kind.BUCKET)) for trace in traces):
        return [BucketArrivals() for _ in traces]
    tables = [columns.buckets(trace) for trace in traces]
    names: dict[str, int] = {}
    found = [_bucket_keys(*of_rank, names) for of_rank in zip(traces, tables, strict=True)]
    lengths = tuple(map(len, tables))
    keys, expected = (np.concatenate(parts) for parts in zip(*found, strict=True))
    rank = np.repeat(np.array([trace.rank for trace in traces], dtype=np.int32), lengths)
    matching = matched([*keys.T], expected, rank, lengths, ())
    ready_ns = np.concatenate([table.ready_ns for table in tables])
    last_ns, late = (matching.split(part) for part in matching.latest(ready_ns))
    number = matching.split(
        np.where(matching.complete[matching.member], matching.member + first_number, -1)
    )
    return [
        BucketArrivals(
            backward_of(table, columns.finalizations(trace)), table.ready_ns, table.end_ns, *parts
        )
        for trace, table, *parts in zip(traces, tables, last_ns, late, number, strict=True)
    ]


def _bucket_keys(trace: Trace, table: Buckets, names: dict[str, int]) -> tuple[Ints, Ints]:
    """Returns each bucket's key, equal on all ranks, and its group's size (0 if unknown).

    Buckets of two models may agree in group, ``seq``, ``index`` and ``signature``. So the key also
    contains the number of such buckets, and the bucket's position among them.
    """
    groups = {
        group.id: (names.setdefault(group.name, len(names)), group.size)
        for group in trace.groups.values()
    }
    group, expected = (
        np.array([groups.get(id, (-1, 0)) for id in table.group.tolist()], dtype=np.int64)
        .reshape(-1, 2)
        .T
    )
    keys = np.stack([group, table.seq, table.index, table.signature.view(np.int64)], axis=1)
    like, _ = distinct_rows(*keys.T)
    count = np.bincount(like)
    order = np.argsort(like, kind="stable")
    turn = np.empty(len(table), dtype=np.int64)
    turn[order] = np.arange(len(table)) - np.repeat(np.cumsum(count) - count, count)
    return np.column_stack([keys, turn, count[like]]), expected


def backward_of(table: Buckets, finalizations: Finalizations) -> Ints:
    """Finds the backward pass of each bucket: the next pass that ends in the bucket's thread.

    A pass ends when DDP has waited for all buckets. The result is -1 if no pass ends later.
    """
    result = np.full(len(table), -1, dtype=np.int64)
    span = finalizations.span
    for thread in np.unique(table.thread).tolist():
        rows, passes = np.flatnonzero(table.thread == thread), span.thread == thread
        at = np.searchsorted(span.end_ns[passes], table.ready_ns[rows], side="left")
        ended = at < np.count_nonzero(passes)
        result[rows[ended]] = span.key[passes][at[ended]]
    return result
