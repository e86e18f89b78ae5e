"""Arrival times of all ranks at their common collectives and gradient buckets, and who came last.

Consider a collective in which every rank waits for all ranks. When the collective ends, all ranks
are at the same point of the program: no rank has gone past its wait for the collective, and a rank
that began to wait is still waiting. For a point-to-point message or a collective with a root, this
holds only for a rank that waited and the rank that it waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.matching import SOME_WAIT, Matching, last_awaited, matched
from commprof.analysis.step.exposure import Exposures
from commprof.trace import columns
from commprof.trace.columns import Buckets, Collectives, Finalizations, Ints
from commprof.trace.reader import Trace


def _none() -> Ints:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class BucketArrivals:
    """Gradient buckets of one rank, in the order in which commprof recorded them.

    A hook may exchange a bucket using several messages or collectives in sequence, each issued as
    the exchange proceeds. So a rank counts as arrived once its gradients are ready.
    """

    #: Backward pass that waited for the bucket; -1 if unknown.
    graph_task: Ints = field(default_factory=_none)
    ready_ns: Ints = field(default_factory=_none)
    #: Time at which the bucket's mean was ready; 0 if not recorded.
    end_ns: Ints = field(default_factory=_none)
    #: As in ``Arrivals``: the time at which the last rank's gradients were ready.
    last_arrival_ns: Ints = field(default_factory=_none)
    late_rank: Ints = field(default_factory=_none)
    #: Numbers that continue those of ``Arrivals.collective``.
    number: Ints = field(default_factory=_none)

    def __len__(self) -> int:
        """Number of buckets."""
        return len(self.graph_task)


@dataclass(frozen=True)
class Arrivals:
    """For each row of one rank's ``Collectives`` table: the last arrival that this rank awaits.

    :mod:`commprof.analysis.align.matching` explains which arrivals a rank awaits.
    """

    #: Issue time of the rank that arrived last; 0 if not all ranks of the group were recorded.
    last_arrival_ns: Ints
    #: Global rank that arrived last; -1 if unknown.
    late_rank: Ints
    #: Number of the collective, the same on all ranks; -1 if not all ranks were recorded.
    collective: Ints
    #: Buckets of the same rank.
    buckets: BucketArrivals = field(default_factory=BucketArrivals)


def clocks_are_shared(traces: Sequence[Trace]) -> bool:
    """True if all ranks ran on one boot of one machine, so that CLOCK_MONOTONIC is common."""
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
    """Finds the last arrival that each rank awaits, per collective and message.

    Collectives and messages are matched with :func:`matching.match`. Times must be on a common
    clock, see :func:`clocks_are_shared`.
    """
    issue_ns = np.concatenate([table.issue_ns for table in tables])
    awaited = last_awaited(matching, traces, tables, issue_ns)
    last_ns, late = (matching.split(part) for part in matching.at(issue_ns, awaited))
    number = matching.split(np.where(matching.complete[matching.member], matching.member, -1))
    buckets = bucket_arrivals(traces, len(matching.complete))
    return [Arrivals(*parts) for parts in zip(last_ns, late, number, buckets, strict=True)]


def bucket_arrivals(traces: Sequence[Trace], first_number: int) -> list[BucketArrivals]:
    """Finds the last rank to arrive at each gradient bucket of the models given to ``attach``.

    If not all ranks of the group recorded the bucket, ``last_arrival_ns`` is 0 and the other two
    results, ``late_rank`` and ``number``, are -1.

    Args:
        traces: traces of the ranks, on a common clock.
        first_number: smallest ``number`` to give to a bucket; collectives have smaller numbers.
    """
    tables = [columns.buckets(trace) for trace in traces]
    if not any(map(len, tables)):
        return [BucketArrivals() for _ in traces]
    names: dict[str, int] = {}
    found = [_bucket_keys(*of_rank, names) for of_rank in zip(traces, tables, strict=True)]
    lengths = tuple(map(len, tables))
    keys, expected = (np.concatenate(parts) for parts in zip(*found, strict=True))
    rank = np.repeat([trace.rank for trace in traces], lengths).astype(np.int64)
    matching = matched(keys, expected, rank, lengths, ())
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
    """Returns each bucket's key, the same on all ranks, and its group's size (0 if unknown).

    Buckets of two models with parameters of the same shapes may agree in group, ``seq``, ``index``
    and ``signature``. The order of such buckets then distinguishes them; they match only if all
    ranks have the same number of them.
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
    _, like, count = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    like = like.reshape(-1)
    order = np.argsort(like, kind="stable")
    turn = np.empty(len(table), dtype=np.int64)
    turn[order] = np.arange(len(table)) - np.repeat(np.cumsum(count) - count, count)
    return np.column_stack([keys, turn, count[like]]), expected


def backward_of(table: Buckets, finalizations: Finalizations) -> Ints:
    """Finds the backward pass of each bucket: the next finalisation in the bucket's thread."""
    result = np.full(len(table), -1, dtype=np.int64)
    span = finalizations.span
    for thread in np.unique(table.thread).tolist():
        rows, passes = np.flatnonzero(table.thread == thread), span.thread == thread
        at = np.searchsorted(span.end_ns[passes], table.ready_ns[rows], side="left")
        ended = at < np.count_nonzero(passes)
        result[rows[ended]] = span.key[passes][at[ended]]
    return result


_SEED = 20261124


@dataclass(frozen=True)
class _Seen:
    """Calls of one rank, in ascending order of their numbers; an end not known exactly is 0."""

    number: Ints
    arrived_ns: Ints
    end_ns: Ints
    #: Numbers of the calls that the training thread waited for.
    awaited: Ints
    #: Numbers of the calls in which not all ranks wait for all.
    some_wait: Ints


class SharedCalls:
    """Collectives and buckets that several ranks take part in, looked up by number."""

    def __init__(
        self,
        tables: Sequence[Collectives],
        arrivals: Sequence[Arrivals],
        exposed: Sequence[Exposures],
    ) -> None:
        """All lists have one entry per rank; ``place`` in the methods is an index into them."""
        self._ranks = [_seen(*each) for each in zip(tables, arrivals, exposed, strict=True)]
        self._met: dict[frozenset[int], list[Ints]] = {}
        self._synchronised: dict[frozenset[int], Ints] = {}
        self.count = 1 + max(int(rank.number.max(initial=-1)) for rank in self._ranks)

    def has(self, place: int, number: Ints) -> npt.NDArray[np.bool_]:
        """Returns a mask over ``number``: True for calls that the rank takes part in."""
        return np.isin(number, self._ranks[place].number)

    def arrived_ns(self, place: int, number: Ints) -> Ints:
        """Returns the times at which a participating rank arrived at these calls."""
        rank = self._ranks[place]
        return rank.arrived_ns[np.searchsorted(rank.number, number)]

    @cached_property
    def some_wait(self) -> npt.NDArray[np.bool_]:
        """Mask by call number: True for calls in which not every rank waits for all ranks.

        These are point-to-point messages, and collectives with a root.
        """
        chosen = np.zeros(self.count, dtype=np.bool_)
        for rank in self._ranks:
            chosen[rank.some_wait] = True
        return chosen

    def met(self, place: int, other: int, moments_ns: Ints) -> None:
        """Adds moments at which either rank arrived at a call while the other rank waited there."""
        self._met.setdefault(frozenset((place, other)), []).append(moments_ns)

    def synchronised_ns(self, place: int, other: int) -> Ints:
        """Returns the moments at which two ranks were at the same point of the program, sorted.

        They are the moments passed to ``met``, and the ends of calls that both ranks take part in.
        A call counts only if all of its ranks wait for each other (see ``some_wait``), and if the
        training thread of at least one rank waited for the call.
        """
        pair = frozenset((place, other))
        if pair in self._met:
            moments = [*self._met[pair], self._together_ns(place, other)]
            return np.unique(np.concatenate(moments))
        return self._together_ns(place, other)

    def _together_ns(self, place: int, other: int) -> Ints:
        common = frozenset(self._moments[place]) & frozenset(self._moments[other])
        if common not in self._synchronised:
            moments = [_none(), *(self._moments[place][key] for key in common)]
            self._synchronised[common] = np.unique(np.concatenate(moments))
        return self._synchronised[common]

    @cached_property
    def _moments(self) -> list[dict[int, Ints]]:
        """Per rank: ends of its synchronising calls, by a key for the set of ranks in the call."""
        salt = np.random.default_rng(_SEED).integers(2**63, size=len(self._ranks), dtype=np.uint64)
        key = np.zeros(self.count, dtype=np.uint64)
        end_ns = np.zeros(self.count, dtype=np.int64)
        counts = np.zeros(self.count, dtype=np.bool_)
        for rank in self._ranks:
            counts[rank.awaited] = True
        counts &= ~self.some_wait
        for rank, own in zip(self._ranks, salt, strict=True):
            key[rank.number] += own  # equal sets of ranks, and only these, have one sum
            end_ns[rank.number] = np.maximum(end_ns[rank.number], rank.end_ns)
            counts[rank.number[rank.end_ns == 0]] = False
        found: list[dict[int, Ints]] = []
        for rank in self._ranks:
            number = rank.number[counts[rank.number]]
            order = number[np.argsort(key[number], kind="stable")]
            groups = np.split(order, np.flatnonzero(np.diff(key[order])) + 1)
            found.append({int(key[each[0]]): end_ns[each] for each in groups if len(each)})
        return found


def last_before(moments_ns: Ints, before_ns: Ints) -> Ints:
    """Returns, per time in ``before_ns``, the last of the sorted moments up to it; 0 if none."""
    at = np.searchsorted(moments_ns, before_ns, side="right")
    return np.concatenate(([0], moments_ns))[at]


def _seen(table: Collectives, arrivals: Arrivals, exposed: Exposures) -> _Seen:
    buckets = arrivals.buckets
    number = np.concatenate((arrivals.collective, buckets.number))
    arrived = np.concatenate((table.issue_ns, buckets.ready_ns))
    # A wait that did not block returns at different times on different ranks.
    end = np.concatenate((np.where(table.end_is_exact, table.end_ns, 0), buckets.end_ns))
    rows = np.flatnonzero(number >= 0)
    rows = rows[np.argsort(number[rows], kind="stable")]
    waited = exposed.collective[(exposed.waited_ns > 0) & (exposed.collective >= 0)]
    awaited = np.concatenate((arrivals.collective[waited], _last_buckets(arrivals, exposed)))
    some_wait = arrivals.collective[np.isin(table.op, SOME_WAIT)]
    return _Seen(
        number[rows],
        arrived[rows],
        end[rows],
        awaited[awaited >= 0],
        some_wait[some_wait >= 0],
    )


def _last_buckets(arrivals: Arrivals, exposed: Exposures) -> Ints:
    """Returns the number of the bucket that ended last in each backward pass that waited."""
    buckets = arrivals.buckets
    waited = exposed.graph_task[exposed.waited_ns > 0]
    order = np.argsort(buckets.end_ns, kind="stable")
    order = order[np.isin(buckets.graph_task[order], waited) & (buckets.graph_task[order] >= 0)]
    last = dict(
        zip(buckets.graph_task[order].tolist(), buckets.number[order].tolist(), strict=True)
    )
    return np.array(list(last.values()), dtype=np.int64)
