"""Size and bandwidth of collectives, and the bytes that ranks send, in total and between hosts.

Size and bandwidth follow the rules of nccl-tests (``doc/PERFORMANCE.md``): algbw = size / time.
busbw = algbw * factor is the rate of one link, comparable between operations and numbers of ranks.
Size is the data that the operation works on: the whole buffer of all_reduce, and all ranks' parts
together for all_gather and reduce_scatter. Size is not the number of bytes that a rank sends.

The least number of bytes to send follows from the sizes. The bytes between hosts depend on gloo's
algorithms (gloo/allreduce.cc, allgather.cc, broadcast.cc, reduce.cc): rings in the order of the
ranks, and a binomial tree for broadcasts. torch runs each reduce-scatter on gloo as an all-reduce
(ProcessGroupGloo.cpp).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from commprof.trace import columns
from commprof.trace.columns import Buckets, Collectives, Ints
from commprof.trace.lookup import among, distinct_rows
from commprof.trace.operations import codes_of, family
from commprof.trace.ranks import firsts_of, joined, ranks_of
from commprof.trace.reader import Trace
from commprof.trace.schema import OPS, op_name
from commprof.trace.summary import Summary

#: Families of operations whose size is the size of the input, or of the output.
_FROM_INPUT = ("reduce_scatter", "all_to_all", "send")
_FROM_OUTPUT = ("all_gather", "recv")


def sizes_bytes(op: Ints, bytes_in: Ints, bytes_out: Ints, group_size: Ints) -> Ints:
    """Returns the size of each call; ``group_size`` is the number of ranks in the call's group."""
    size = np.maximum(bytes_in, bytes_out)
    for code in np.flatnonzero(np.bincount(op)[: len(OPS)]).tolist():
        of_family, rows = family(OPS[code]), op == code
        if of_family in _FROM_INPUT:
            size[rows] = bytes_in[rows]
        elif of_family in _FROM_OUTPUT:
            size[rows] = bytes_out[rows]
        elif of_family == "gather":
            size[rows] = bytes_in[rows] * group_size[rows]
        elif of_family == "scatter":
            size[rows] = bytes_out[rows] * group_size[rows]
    return size


def bus_factor(op: str, ranks: int) -> float:
    """Returns busbw / algbw; NaN if nccl-tests has no rule for the operation.

    Also NaN for one rank, except for a broadcast, a reduce and messages, whose factor is always 1.
    """
    of_family = family(op)
    if op == "send_recv" or of_family in ("broadcast", "reduce", "send", "recv"):
        return 1.0
    if ranks < 2:
        return math.nan
    if of_family == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if of_family in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (ranks - 1) / ranks
    return math.nan


Floats = npt.NDArray[np.float64]
_Factor = Callable[[Floats], Floats]

#: For each family of operations: bytes that a rank in a group of n ranks sends, divided by the
#: bytes of the operation's input. This is a mean over the ranks.
_OF_INPUT: dict[str, _Factor] = {
    # a reduce-scatter and an all-gather around a ring, with (n - 1) / n each
    "all_reduce": lambda n: 2 * (n - 1) / n,
    # The buffer is sent n - 1 times in all, once for each rank except the root.
    "broadcast": lambda n: (n - 1) / n,
    "reduce": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    # a rank sends its own part to each other rank
    "all_gather": lambda n: n - 1,
    # a rank sends all parts but its own
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "send": lambda n: np.ones_like(n),
    "barrier": np.zeros_like,
    "recv": np.zeros_like,
}
#: Bytes that a rank sends, divided by the bytes of the operation's output. In a scatter, only the
#: root has an input.
_OF_OUTPUT: dict[str, _Factor] = {"scatter": lambda n: (n - 1) / n}


def sent_bytes(trace: Trace, table: Collectives) -> Floats:
    """Returns the payload that a rank sends in each collective, as a mean over its group's ranks.

    The sum over all ranks is the least number of bytes that must pass between them. NaN for an
    unknown operation, and for a group that is not in the trace.
    """
    n = np.zeros(len(table))
    for group in trace.groups.values():
        n[table.group == group.id] = group.size
    result = np.full(len(table), np.nan)
    issued = {family(op_name(op)) for op in np.unique(table.op).tolist()}
    for factors, size in ((_OF_INPUT, table.bytes_in), (_OF_OUTPUT, table.bytes_out)):
        for of_family in factors.keys() & issued:
            rows = among(table.op, *codes_of(of_family)) & (n > 0)
            result[rows] = factors[of_family](n[rows]) * size[rows]
    return result


def ring_bytes(trace: Trace, buckets: Buckets, world_size: int) -> Floats:
    """Returns the bytes that a rank sends in a ring all-reduce of each gradient bucket.

    The ring has the ranks of the model's process group. If the trace does not describe this group,
    the ring has all ``world_size`` ranks.
    """
    sizes = {group.id: group.size for group in trace.groups.values() if group.size > 0}
    n = np.array([sizes.get(group, world_size) for group in buckets.group.tolist()], np.float64)
    return _OF_INPUT["all_reduce"](n) * buckets.bytes


def all_sent_bytes(trace: Trace, table: Collectives | None = None) -> float:
    """Returns the bytes that a rank sent during capture; NaN if the bytes of a call are unknown.

    If capture was ever in always-on mode, a summary in the trace covers all operations since this
    mode began. Records give the bytes of operations before that.

    Args:
        trace: the trace as it was written, on its own clock.
        table: collectives of the trace, if the caller has them.
    """
    table = columns.collectives(trace) if table is None else table
    sent = sent_bytes(trace, table)
    if trace.summary is None:
        return float(sent.sum())
    before = table.issue_ns < trace.summary.begin_ns
    return float(sent[before].sum()) + summarised_sent_bytes(trace, trace.summary)


def summarised_sent_bytes(trace: Trace, summary: Summary) -> float:
    """Returns the bytes sent by all operations of a summary; NaN if they are unknown.

    The bytes of a gather or scatter are unknown, because a summary does not hold the size of one
    rank's part.
    """
    sizes = {group.id: group.size for group in trace.groups.values()}
    total = 0.0
    for operation in summary.operations:
        of_family, n = family(op_name(operation.op)), sizes.get(operation.group, 0)
        if operation.bytes == 0:
            continue
        if of_family not in _OF_INPUT or of_family == "gather" or n == 0:
            return math.nan
        factor = float(_OF_INPUT[of_family](np.array([n], dtype=np.float64))[0])
        # The summary has the output size of an all_gather, which is n times the input size.
        total += operation.bytes * (factor / n if of_family == "all_gather" else factor)
    return total


def sent_to_other_hosts(
    traces: Sequence[Trace], tables: Sequence[Collectives], hosts: Sequence[object]
) -> Floats:
    """Returns the payload in bytes that each call of the tables sends to other hosts.

    NaN for an unknown operation, and for a group that does not hold all ranks in their order.

    Args:
        traces: traces of ranks.
        tables: collectives of each trace.
        hosts: host of each rank of the job; equal values are the same host.
    """
    numbers: dict[object, int] = {}
    number_of = np.array([numbers.setdefault(host, len(numbers)) for host in hosts])
    factors = [_Factors(trace.rank, number_of) for trace in traces]
    place = ranks_of(firsts_of(tables))
    op, peer, bytes_in, bytes_out = (
        joined(tables, name) for name in ("op", "peer", "bytes_in", "bytes_out")
    )
    result = np.full(len(place), np.nan)
    in_whole = _in_whole(traces, tables, place, len(hosts))
    for families, size, of in (
        (("all_reduce", "reduce_scatter"), bytes_in, _Factors.ring_reduce),
        (("all_gather",), bytes_in, _Factors.ring_gather),
        (("broadcast",), bytes_in, _Factors.tree),
        (("reduce",), bytes_in, _Factors.reduce),
        (("gather", "send"), bytes_in, _Factors.to_peer),
        (("scatter",), bytes_out, _Factors.from_root),
        (("all_to_all",), bytes_in, _Factors.to_all),
        (("barrier", "recv"), bytes_in, _Factors.nothing),
    ):
        rows = np.flatnonzero(among(op, *codes_of(*families)) & in_whole)
        if not len(rows):
            continue
        pair, first = distinct_rows(place[rows], peer[rows])
        pairs = zip(place[rows][first].tolist(), peer[rows][first].tolist(), strict=True)
        factor = np.array([of(factors[at], root) for at, root in pairs], dtype=np.float64)
        result[rows] = factor[pair] * size[rows]
    return result


def _in_whole(
    traces: Sequence[Trace], tables: Sequence[Collectives], place: Ints, size: int
) -> npt.NDArray[np.bool_]:
    """True for the calls whose group has all ``size`` ranks in their order.

    ``place``: index of each call's trace.
    """
    group = joined(tables, "group")
    number, first = distinct_rows(place, group)
    whole = [
        (found := traces[at].groups.get(of_group)) is not None
        and (found.size, found.rank) == (size, traces[at].rank)
        for at, of_group in zip(place[first].tolist(), group[first].tolist(), strict=True)
    ]
    mask: npt.NDArray[np.bool_] = np.array(whole, dtype=np.bool_)[number]
    return mask


class _Factors:
    """Bytes that one rank sends to other hosts, divided by an operation's bytes.

    Each method is for one operation. ``peer`` is the root or the destination, if the operation has
    one. The operation's bytes are the bytes of its input, but for a scatter the bytes of its
    output.
    """

    def __init__(self, me: int, hosts: Ints) -> None:
        """``hosts``: index of each rank's host. ``me``: the sending rank."""
        self._me, self._hosts, self._n = me, hosts, len(hosts)

    def ring_reduce(self, peer: int) -> float:
        """The rank sends n - 1 of n parts to the previous rank, to reduce and again to gather."""
        return 2 * (self._n - 1) / self._n * self._to(self._me - 1)

    def ring_gather(self, peer: int) -> float:
        """The rank sends its own part, and all received parts but the last, to the next rank."""
        return (self._n - 1) * self._to(self._me + 1)

    def tree(self, root: int) -> float:
        """In round i, rank r < 2^i, counted from the root, sends the input to rank r + 2^i."""
        mine = (self._me - root) % self._n
        bits = range((self._n - 1).bit_length())
        children = [mine + (1 << bit) for bit in bits if mine < 1 << bit]
        return sum(self._to(root + child) for child in children if child < self._n)

    def reduce(self, root: int) -> float:
        """The rank sends n - 1 of n parts around a ring, and its reduced part to the root."""
        n = self._n
        return (n - 1) / n * self._to(self._me - 1) + self.to_peer(root) / n

    def to_peer(self, peer: int) -> float:
        return self._to(peer)

    def from_root(self, root: int) -> float:
        return self._away() if self._me == root else 0.0

    def to_all(self, peer: int) -> float:
        """The rank sends an equal part of its input to each rank."""
        return self._away() / self._n

    def nothing(self, peer: int) -> float:
        return 0.0

    def _away(self) -> float:
        return float((self._hosts != self._hosts[self._me]).sum())

    def _to(self, rank: int) -> float:
        return float(self._hosts[rank % self._n] != self._hosts[self._me])
