"""Matches the rows of one collective on different ranks, and finds which ranks wait for which.

In most collectives, each rank waits for all ranks of the group. In messages and in collectives with
a root, a rank may wait for fewer ranks:

- gloo's messages: sender and receiver wait for each other. Measurements with ranks that were 0.15 s
  late show this for messages of 4 B, 4 kB, 256 kB and 16 MB.
- gloo's broadcast: such messages go down a binomial tree. A rank waits for the root, for the ranks
  between the root and itself, and for the ranks to which it sends.
- gather and scatter: these are messages between the root and each other rank.
- gloo's reduce: this is a ring, so each rank waits for all ranks.
- broadcast and reduce of other backends: NCCL uses a ring or a tree of unknown shape. So each rank
  is assumed to wait for all ranks.

See gloo/broadcast.cc, gather.cc, scatter.cc and reduce.cc. A test compares these rules with a real
gloo group whose ranks are delayed.

In messages and in collectives with a root, a rank may be done before other ranks arrive, for
example if the backend buffers the message. Ranks that arrive later did not delay this rank. In
every other collective, all ranks must arrive before a rank is done.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.alike_ranks import alike_ranks
from commprof.analysis.align.interfaces import ddp_logs, logged_bucket_sizes, trained_no_ddp
from commprof.trace import columns
from commprof.trace.columns import Buckets, Collectives, Ints
from commprof.trace.documents import Group
from commprof.trace.lookup import among, distinct_rows, joined_column, kept_once, look_up, repeated
from commprof.trace.ranks import Narrow, joined, lengths_of
from commprof.trace.reader import Trace
from commprof.trace.schema import AWAITS, NO_SEQ, OPS, POINT_TO_POINT, SOME_WAIT, Kind

SEND, RECV, RECV_ANY_SOURCE = (OPS.index(name) for name in ("send", "recv", "recv_any_source"))

#: Bucket index of a collective that belongs to no bucket, or to an unknown bucket.
NO_BUCKET = -1
_ALL_REDUCE = OPS.index("all_reduce")


@dataclass(frozen=True)
class Matching:
    """Rows of all ranks' tables, concatenated, and the collective of each row."""

    #: Per row: index of its collective.
    member: Ints
    #: Per collective: True if the records show that each of its ranks issued it exactly once.
    complete: npt.NDArray[np.bool_]
    #: Per row: index of the process group, common to all ranks; -1 if the group is not described.
    group: Ints
    #: Per row: global rank.
    rank: Narrow
    #: Number of rows of each rank.
    lengths: tuple[int, ...]
    #: Process groups by their common index, as the first rank describes them.
    groups: tuple[Group, ...]

    def every(self, holds: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Per row: True if its collective is complete and ``holds`` in all of its rows."""
        failed = np.bincount(self.member[~holds], minlength=len(self.complete)) > 0
        result: npt.NDArray[np.bool_] = (self.complete & ~failed)[self.member]
        return result

    def split(self, values: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """Splits a column over all ranks into one column per rank."""
        return np.split(values, np.cumsum(self.lengths)[:-1])

    def numbers(self) -> Ints:
        """Per row: the number of its collective; -1 if the collective is not complete."""
        if self.complete.all():
            return self.member
        return np.where(self.complete[self.member], self.member, -1)

    def latest(self, times_ns: Ints) -> tuple[Ints, Narrow]:
        """Per row: the latest of the times in its collective, and the rank that has this time.

        The time is 0 and the rank -1 if the collective is not complete.
        """
        return self.at(times_ns, self.last_row(times_ns))

    def at(self, times_ns: Ints, row: Ints) -> tuple[Ints, Narrow]:
        """Looks up time and rank of the given rows; row -1 gives 0 and -1."""
        if len(row) == 0:
            return row, row
        return self.times_at(times_ns, row), np.where(row < 0, -1, self.rank[row])

    def times_at(self, times_ns: Ints, row: Ints) -> Ints:
        """Looks up the time of the given rows; row -1 gives 0."""
        return np.where(row < 0, 0, times_ns[row]) if len(row) else row

    def last_row(self, times_ns: Ints) -> Ints:
        """Per row: the row with the largest time in the same collective.

        -1 if the collective is not complete. If several ranks have the largest time, the lowest of
        these ranks counts, as in the summaries of always-on mode.
        """
        if len(times_ns) == 0:
            return np.empty(0, dtype=np.int64)
        latest = np.full(len(self.complete), np.iinfo(np.int64).min)
        np.maximum.at(latest, self.member, times_ns)
        rows = np.flatnonzero(times_ns == latest[self.member])
        rows = rows[np.argsort(-self.rank[rows], kind="stable")]
        last = np.full(len(self.complete), -1, dtype=np.int64)
        # the last assignment counts: it is that of the lowest rank
        last[self.member[rows]] = rows
        return np.where(self.complete, last, -1)[self.member]


def match(traces: Sequence[Trace], tables: Sequence[Collectives]) -> Matching:
    """Groups the rows of all ranks into collectives by group name and sequence number.

    A collective is complete if each rank of its group issued the same operation exactly once under
    the same sequence number. A send and a recv are one message if both have the same sequence
    number and size in bytes.

    Rows without a sequence number are not matched. Examples are a ``recv_any_source``, later
    messages to the same rank in its group, and messages in recordings of other profilers.
    """
    groups: dict[tuple[str, int], tuple[int, Group]] = {}
    parts = [_keys(traces[rows], tables[rows], groups) for rows in alike_ranks(traces)]
    *keys, expected = (joined_column(column) for column in zip(*parts, strict=True))
    del parts
    lengths = tuple(lengths_of(tables))
    rank = np.repeat(np.array([trace.rank for trace in traces], dtype=np.int32), lengths)
    described = tuple(group for _, group in groups.values())
    return matched(keys, expected, rank, lengths, described)


def matched(
    keys: Sequence[Ints],
    expected: Ints,
    rank: Narrow,
    lengths: tuple[int, ...],
    groups: tuple[Group, ...],
) -> Matching:
    """Groups rows with equal keys into collectives.

    Args:
        keys: columns that together give a key per row of all ranks' tables. The first column is the
            index of the process group.
        expected: per row, the number of ranks that issue the collective.
        rank: per row, the global rank.
        lengths: number of rows per rank.
        groups: process groups, by index.
    """
    member, first = distinct_rows(*keys)
    issued = np.bincount(member)
    _, of_rank = distinct_rows(member, rank)
    distinct = np.bincount(member[of_rank], minlength=len(issued))
    complete = (issued == expected[first]) & (distinct == issued)
    return Matching(member, complete, keys[0], rank, lengths, groups)


def rank_in_group(trace: Trace, table: Collectives) -> Ints:
    """Per row: this process's rank in the row's group; 0 if the group is not described."""
    own = np.zeros(len(table), dtype=np.int64)
    for group in trace.groups.values():
        own[table.group == group.id] = group.rank
    return own


def _keys(
    traces: Sequence[Trace],
    tables: Sequence[Collectives],
    groups: dict[tuple[str, int], tuple[int, Group]],
) -> tuple[Ints, ...]:
    """Returns, per row, the key of its collective (six columns) and how many ranks issue it.

    The ranks must describe their groups alike, see :func:`alike_ranks`. The number of ranks is 0 if
    the row cannot be matched.

    A group has the same name on all ranks, but may have different numbers. Groups that reuse a
    name, such as the default group after ``destroy_process_group``, are distinguished by their
    order.
    """
    number, op, seq = (joined(tables, name) for name in ("group", "op", "seq"))
    group = np.full(len(op), -1, dtype=np.int64)
    expected = np.zeros(len(op), dtype=np.int64)
    turns: Counter[str] = Counter()
    for described in sorted(traces[0].groups.values(), key=lambda each: each.id):
        rows = number == described.id
        key = described.name, turns[described.name]
        turns[described.name] += 1
        group[rows] = groups.setdefault(key, (len(groups), described))[0]
        expected[rows] = described.size
    message = among(op, *POINT_TO_POINT)
    expected[message & (group >= 0)] = 2
    # In all other rows NO_SEQ is a valid number, because numbers of commprof wrap around.
    unnumbered = (message | (op == _OTHER) | traces[0].is_foreign) & (seq == NO_SEQ)
    expected[(op == RECV_ANY_SOURCE) | unnumbered] = 0
    group, expected = kept_once(group), kept_once(expected)
    if not message.any():
        none = repeated(np.int64(-1), len(op))
        return group, seq, op, none, none, none, expected
    own_rank = np.concatenate(list(map(rank_in_group, traces, tables)))
    sent, peer = op == SEND, joined(tables, "peer")
    source = np.where(message, np.where(sent, own_rank, peer), -1)
    target = np.where(message, np.where(sent, peer, own_rank), -1)
    size = np.where(
        message, np.where(sent, joined(tables, "bytes_in"), joined(tables, "bytes_out")), -1
    )
    return group, seq, np.where(op == RECV, SEND, op), source, target, size, expected


Mask = npt.NDArray[np.bool_]

_OTHER = OPS.index("other")
#: Number of pairs of ranks that are compared at a time: 32 MB per column.
_PAIRS = 1 << 22


def last_awaited(
    matching: Matching, traces: Sequence[Trace], tables: Sequence[Collectives], times_ns: Ints
) -> Ints:
    """Finds, for each rank's call, the latest call of another rank that the rank waited for.

    Args:
        matching: matching of ``tables``.
        traces: traces of the ranks, on a common clock.
        tables: collectives of each trace.
        times_ns: arrival time of each row, on the common clock.

    Returns:
        Per row: index of the latest call's row in the joined tables of all ranks; the row's own
        index if no awaited rank arrived later; -1 if the collective is not complete.
    """
    last = matching.last_row(times_ns)
    for grid, held_up in held_up_by(matching, traces, tables, times_ns):
        others = np.where(held_up, times_ns[grid][:, np.newaxis, :], -1).argmax(axis=2)
        last[grid] = np.take_along_axis(grid, others, axis=1)
    return last


def held_up_by(
    matching: Matching, traces: Sequence[Trace], tables: Sequence[Collectives], times_ns: Ints
) -> Iterator[tuple[Ints, Mask]]:
    """Finds which ranks can have delayed each rank, in rooted collectives and messages.

    Only complete operations are included. Args as for :func:`last_awaited`.

    Yields:
        For one part of the operations after another: an array ``[operation, rank]`` of row
        indices, and a mask ``[operation, rank, other]``. All operations of a part have the same
        number of ranks. The mask is True if ``rank`` needed ``other``, and ``other`` arrived before
        ``rank`` was done. It is also True if ``rank`` and ``other`` are the same rank.
    """
    op = joined(tables, "op")
    rows = np.flatnonzero(among(op, *SOME_WAIT))
    rows = rows[matching.complete[matching.member[rows]]]
    if len(rows) == 0:
        return
    end_ns, root = (
        np.concatenate([getattr(t, name) for t in tables]) for name in ("end_ns", "peer")
    )
    own = np.concatenate([rank_in_group(*each) for each in zip(traces, tables, strict=True)])
    end_ns = np.where(end_ns > 0, end_ns, np.iinfo(np.int64).max)
    rows = rows[np.lexsort((own[rows], matching.member[rows]))]
    _, first, count = np.unique(matching.member[rows], return_index=True, return_counts=True)
    is_message = np.isin(op[rows[first]], POINT_TO_POINT)
    kinds = np.stack([x[rows[first]] for x in (matching.group, op, root)], axis=1)
    kinds[is_message] = [-1, SEND, -1]
    for kind in kinds[distinct_rows(*kinds.T)[1]]:
        group = matching.groups[kind[0]] if kind[0] >= 0 else None
        size = group.size if group is not None else 2
        mine = first[(kinds == kind).all(axis=1) & (count == size)]
        if len(mine) == 0:  # a damaged trace may state any size
            continue
        # [collective, rank in the group]
        grid = rows[mine[:, np.newaxis] + np.arange(size)]
        needs = np.ones((size, size), dtype=bool)
        if group is not None:
            needs = needed_ranks(int(kind[1]), int(kind[2]), size, group.backend == "gloo")
        for part in np.array_split(grid, math.ceil(grid.size * size / _PAIRS)):
            came = times_ns[part][:, np.newaxis, :] <= end_ns[part][:, :, np.newaxis]
            yield part, (needs & came) | np.eye(size, dtype=bool)


@cache
def needed_ranks(op: int, root: int, size: int, is_gloo: bool) -> Mask:
    """Finds the ranks that must arrive before a rank can be done with a rooted collective.

    Args:
        op: code of broadcast, reduce, gather or scatter.
        root: rank in the group.
        size: ranks in the group.
        is_gloo: True if the backend is gloo.

    Returns:
        Mask ``[rank, other]`` over ranks of the group; a rank needs itself.
    """
    rank = np.arange(size)
    needs = np.ones((size, size), dtype=bool)
    if AWAITS[op] == "root":
        needs = (rank == root)[:, np.newaxis] | (rank == root) | np.eye(size, dtype=bool)
    elif AWAITS[op] == "tree" and is_gloo:
        parents = _parents(size)
        needs = np.eye(size, dtype=bool)
        for place in range(1, size):
            at = place
            needs[parents[place], place] = True  # a rank waits until its child has arrived
            while at:
                at = parents[at]
                needs[place, at] = True
        places = (rank - root) % size
        needs = needs[places][:, places]
    return needs


def _parents(size: int) -> list[int]:
    """Returns each node's parent in the binomial tree: its index without the highest bit."""
    return [place ^ (1 << (place.bit_length() - 1)) if place else 0 for place in range(size)]


def bucket_numbers(trace: Trace, table: Collectives) -> Ints:
    """Returns the index of each collective's DDP gradient bucket; ``NO_BUCKET`` if it has none.

    With commprof's DDP hook, a bucket's collectives are those that the hook issues while it
    launches the bucket, and those of a compressor's thread that works on the bucket. Without the
    hook, the order of DDP's all-reduces gives the index, because DDP launches buckets in the order
    of their indices. If the sizes are not those in DDP's logs (for example with all-reduces of
    SyncBatchNorm), no collective of the pass has an index. Without logs, sizes are not compared.

    Args:
        trace: one rank's trace as it was recorded, on the host's clock.
        table: the collectives of this trace, on any clock.
    """
    hooked = columns.buckets(trace)
    if not len(hooked) and trained_no_ddp(trace):
        return np.full(len(table), NO_BUCKET)
    known, number = _by_hook(trace, hooked) if len(hooked) else _by_order(trace, table)
    return look_up(table.op_id, known, number + 1) - 1


def _by_hook(trace: Trace, hooked: Buckets) -> tuple[Ints, Ints]:
    issues = columns.of_kind(trace.records, Kind.ISSUE)
    op_id, thread = columns.ints(issues["op_id"]), columns.ints(issues["thread"])
    at = columns.ints(issues["timestamp_ns"])
    spans = columns.of_kind(trace.records, Kind.SPAN)
    span_thread, span_begin = columns.ints(spans["thread"]), columns.ints(spans["timestamp_ns"])
    span_of = look_up(columns.ints(spans["op_id"]), hooked.op_id, hooked.index + 1) - 1
    found = [
        # Capture in Python gives a bucket and its exchange the same id.
        look_up(op_id, hooked.op_id, hooked.index + 1) - 1,
        _within(at, thread, hooked.ready_ns, hooked.launch_ns, hooked.thread, hooked.index),
        _within(at, thread, span_begin, columns.ints(spans["value"]), span_thread, span_of),
    ]
    number = np.maximum.reduce(found)
    return op_id, number


def _within(at: Ints, thread: Ints, begin: Ints, end: Ints, of_thread: Ints, number: Ints) -> Ints:
    """Returns for each time the ``number`` of the interval on the same thread that contains it.

    Returns ``NO_BUCKET`` for a time outside of all intervals. Intervals of a thread must not
    overlap.
    """
    result = np.full(len(at), NO_BUCKET, dtype=np.int64)
    for each in np.unique(of_thread).tolist():
        mine = np.flatnonzero(of_thread == each)
        mine = mine[np.argsort(begin[mine], kind="stable")]
        rows = np.flatnonzero(thread == each)
        last = np.searchsorted(begin[mine], at[rows], side="right") - 1
        inside = (last >= 0) & (at[rows] <= end[mine[np.maximum(last, 0)]])
        result[rows[inside]] = number[mine[last[inside]]]
    return result


def _by_order(trace: Trace, table: Collectives) -> tuple[Ints, Ints]:
    """Returns the ``op_id`` of DDP's all-reduces, and the position of each in its backward pass.

    Passes that DDP finalised several times are left out. The position is ``NO_BUCKET`` if the sizes
    of a pass's all-reduces are not those of the buckets in DDP's logs.
    """
    passes, ends = np.unique(columns.finalized_passes(trace), return_counts=True)
    rows = np.flatnonzero((table.op == _ALL_REDUCE) & np.isin(table.graph_task, passes[ends == 1]))
    issues = columns.of_kind(trace.records, Kind.ISSUE)
    # The host's times give the order of issue. A device's streams may be ready in another order.
    host_ns = look_up(
        table.op_id[rows], columns.ints(issues["op_id"]), columns.ints(issues["timestamp_ns"])
    )
    rows = rows[np.lexsort((host_ns, table.graph_task[rows]))]
    _, first, count = np.unique(table.graph_task[rows], return_index=True, return_counts=True)
    turn = np.arange(len(rows)) - np.repeat(first, count)
    allowed = _logged_sizes(trace)
    if allowed:
        parts = zip(first.tolist(), (first + count).tolist(), strict=True)
        whole = [sorted(table.bytes_in[rows[a:b]].tolist()) in allowed for a, b in parts]
        turn = np.where(np.repeat(whole, count), turn, NO_BUCKET)
    return table.op_id[rows], turn


def _logged_sizes(trace: Trace) -> list[list[int]]:
    return [
        sorted(sizes)
        for log in ddp_logs(trace)
        for key in ("bucket_sizes", "rebuilt_bucket_sizes")
        if (sizes := logged_bucket_sizes(log, key))
    ]
